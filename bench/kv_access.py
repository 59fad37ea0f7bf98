"""Findings of the KV access study (IPDPS'25), asked of a trace with tiles by canned queries.

    python bench/gpu.py MODEL --backend TRITON_ATTN --kinds tile+steps=120:160 --starts 1 --rounds 32:1 --keep FOLDER
    kvtrace ingest FOLDER/tile-steps=120:160-0 --all-tiles -o TRACE
    python bench/kv_access.py TRACE

The first, on a GPU, runs two batches of 32 sequences under vLLM's own CUDA graphs. Its tiles are of the last decodes of
the first batch, all of the second's prefill and its first decodes. Prints what the rows say together, by phase: shares
are added up over layers, medians are those of the layers' own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb

import kvtrace

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
"""Printed tables: over the rows of the queries, each a table of its name."""


def main(path: Path) -> None:
    """Ask the queries and print what they say."""
    answers = duckdb.connect()
    with kvtrace.open(path) as trace:
        steps = trace.sql("SELECT * FROM tile_step", format="arrow")
        if not steps:
            raise SystemExit(f"{path} holds no tiles")
        answers.register("tile_step", steps)
        for name in QUERIES:
            answers.register(name.replace("-", "_"), trace.query(name, format="arrow"))
    for title, question in FINDINGS.items():
        print(title)
        asked = answers.sql(question)
        for row in asked.fetchall():
            told = (f"{value:.4g}" if isinstance(value, float) else value for value in row)
            print("   ", ", ".join(f"{name} {value}" for name, value in zip(asked.columns, told, strict=True)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
