"""On a GPU: what the KV access study (IPDPS'25) found, asked of one recording of every tile with canned queries.

    python -m bench.kv_access MODEL_DIR FOLDER

vLLM's Triton backend under its own CUDA graphs runs two batches of 32 prompts of 512 tokens and 128 output tokens each.
Tiles are recorded in the steps from `--steps`: the last decodes of the first batch, all of the second's prefill and its
first decodes. Leaves the recording, its trace and each query's rows (CSV) in FOLDER; prints what they say together, by
phase: shares are added up over layers, medians are those of the layers' own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.gpu import OUTPUT_TOKENS, batch

SEQUENCES, BATCHES = 32, 2
STEPS = f"{OUTPUT_TOKENS - 8}:{OUTPUT_TOKENS + 32}"
QUERIES = ["kv-reads-writes", "kv-read-order", "kv-lag", "block-idle", "tile-idle", "kv-bandwidth", "kv-parallelism"]

FINDINGS = {
    "tiles": "SELECT count(*) AS steps, sum(programs) AS programs, sum(tiles) AS tiles, sum(lost_steps) AS lost "
    "FROM tile_step WHERE programs > 0",
    "writes are of prefill (whole run)": "SELECT phase, sum(written_tokens) AS written_tokens, "
    "sum(write_share) AS write_share, sum(read_blocks) AS read_blocks, sum(read_share) AS read_share "
    "FROM kv_reads_writes GROUP BY phase ORDER BY phase",
    "reads in increasing order": "SELECT phase, sum(pairs_in_program) AS pairs_in_program, "
    "sum(in_program * pairs_in_program) / sum(pairs_in_program) AS in_program, sum(pairs_in_request) AS "
    "pairs_in_request, sum(in_request * pairs_in_request) / sum(pairs_in_request) AS in_request "
    "FROM kv_read_order GROUP BY phase ORDER BY phase",
    "lag from K to V": "SELECT kind, phase, sum(accesses) AS accesses, median(p50_lag_ns) AS p50_ns, "
    "median(p95_lag_ns) AS p95_ns FROM kv_lag GROUP BY kind, phase ORDER BY kind, phase",
    "idle, of the time held": "SELECT CASE WHEN layer IS NULL THEN 'any layer' ELSE 'one layer' END AS kv, "
    "max(passes) AS passes, sum(held_block_seconds) AS held_block_s, avg(idle_share) AS idle, "
    "avg(idle_within_share) AS idle_within_pass, avg(idle_between_share) AS idle_between, "
    "median(p50_gap_ms) AS p50_gap_ms FROM block_idle GROUP BY kv ORDER BY kv",
    "idle, while its layer's attention runs": "SELECT phase, sum(tiles) AS tiles, "
    "1 - sum(tiles * mean_read_us) / sum(tiles * mean_pass_us) AS idle FROM tile_idle GROUP BY phase ORDER BY phase",
    "bandwidth": "SELECT kind, batch, sum(windows) AS windows, median(mean_window_us) AS window_us, "
    "median(p50_gb_per_s) AS p50_gb_per_s FROM kv_bandwidth GROUP BY kind, batch ORDER BY kind, batch",
    "parallelism": "SELECT sum(observed_passes) AS passes, avg(mean_accesses) AS mean, max(max_accesses) AS most, "
    "avg(mean_active_requests) AS mean_requests, max(max_active_requests) AS most_requests FROM kv_parallelism",
}
"""What is printed: over the rows of the queries, each a table of its name."""


def serve(model: str) -> None:
    """Run the batches; under `kvtrace record`."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=1024,
        gpu_memory_utilization=0.25,
        kv_cache_memory_bytes=4 << 30,
        attention_backend="TRITON_ATTN",
    )
    parameters = SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True, detokenize=False)
    for seed in range(BATCHES):
        batch(llm.llm_engine, parameters, SEQUENCES, seed)


def record(options: Any) -> Path:
    """Record the batches and ingest them; returns the trace."""
    run, kvtrace = options.folder / "run", [sys.executable, "-m", "kvtrace"]
    level = ["--kv-level", "tile", "--steps", options.steps, "--force", "-o", str(run)]
    module = [sys.executable, "-m", "bench.kv_access", options.model, str(options.folder), "--serve"]
    environment = {"VLLM_LOGGING_LEVEL": "ERROR", **os.environ}
    subprocess.run([*kvtrace, "record", *level, "--", *module], env=environment, check=True)
    subprocess.run([*kvtrace, "ingest", str(run), "--all-tiles"], check=True)
    return run / "trace.duckdb"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("folder", type=Path, help="for the recording and the queries' rows")
    parser.add_argument("--steps", default=STEPS, help="steps with tiles (%(default)s)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.model)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    report(record(options), options.folder)


def report(path: Path, folder: Path) -> None:
    """Ask the queries, keep their rows and print what they say."""
    import duckdb

    import kvtrace

    answers = duckdb.connect()
    with kvtrace.open(path) as trace:
        steps = trace.sql("SELECT * FROM tile_step", format="arrow")
        if not steps:
            raise SystemExit("no tiles were recorded: see what `kvtrace record` said above")
        answers.register("tile_step", steps)
        for name in QUERIES:
            rows = trace.query(name, format="arrow")
            answers.register(name.replace("-", "_"), rows)
            answers.from_arrow(rows).write_csv(str(folder / f"{name}.csv"))
    for title, question in FINDINGS.items():
        print(title)
        asked = answers.sql(question)
        for row in asked.fetchall():
            told = (f"{value:.4g}" if isinstance(value, float) else value for value in row)
            print("   ", ", ".join(f"{name} {value}" for name, value in zip(asked.columns, told, strict=True)))


if __name__ == "__main__":
    main()
