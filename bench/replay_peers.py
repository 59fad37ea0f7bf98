"""Hit shares of measured cells: replay's predictions beside simulators that read request traces.

    python -m bench.replay_peers CELLS --pair MEASURED=BASE [--pair MEASURED=BASE ...]

CELLS is a folder of `kvtrace lab run` whose cells have a trace (`run/trace.duckdb`). MEASURED and BASE are what names
begin with. Replay predicts MEASURED from BASE, a cell of the same jobs with another size of KV cache, by the command
that a user would type. The others get the prompts of MEASURED itself, with their recorded hash chains and in recorded
order, and the size of its cache.

The others are not dependencies of kvtrace. `kvcache-simulator` must be on the PATH. Of LMCache, the functions of
`lmcache.tools.cache_simulator` are called, as its command needs more than its wheel. One that is missing is left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import kvtrace
from kvtrace.lab.replay.check import Outcome, outcome
from kvtrace.lab.replay.recording import Recording, read_recording

KVTRACE = (sys.executable, "-m", "kvtrace")


class Said(NamedTuple):
    """A tool's hit share, the measured one that it stands beside, seconds to answer, and its mean job time, ms."""

    hit_share: float
    measured: float
    took_s: float
    job_ms: float | None = None


def main() -> None:
    """Ask every tool about every pair and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", type=Path)
    parser.add_argument("--pair", action="append", required=True, metavar="MEASURED=BASE")
    options = parser.parse_args()
    print("| cell | tool | hits predicted / measured, % | off, pp | job time off | took, s |")
    print("|---|---|---|---|---|---|")
    for pair in options.pair:
        name, _, base = pair.partition("=")
        trace = _trace(options.cells, name)
        recording, measured = read_recording(trace), outcome(trace)
        tools = {
            "kvtrace replay": replay(_trace(options.cells, base), recording, measured),
            "LMCache cache_simulator": lmcache(recording, measured),
            "kvcache-simulator (later half)": kvcache_simulator(recording, later_share(trace)),
        }
        for tool, said in tools.items():
            if said:
                job = "-" if said.job_ms is None else f"{said.job_ms / measured.latency_ms['job'][0] - 1:+.0%}"
                print(
                    f"| {name} | {tool} | {said.hit_share:.1%} / {said.measured:.1%} "
                    f"| {100 * (said.hit_share - said.measured):+.1f} | {job} | {said.took_s:.2f} |",
                    flush=True,
                )


def _trace(cells: Path, name: str) -> Path:
    found = sorted(cells.glob(f"{name}-*/run/trace.duckdb"))
    if len(found) != 1:
        raise SystemExit(f"{len(found)} cells with a trace in {cells} begin with {name}-")
    return found[0]


def later_share(trace: Path) -> float:
    """Hit share of the later half of a recorded cell's requests."""
    with kvtrace.open(trace) as opened:
        [[share]] = opened.sql(
            "SELECT sum(local_cached_tokens) / sum(prompt_tokens) FROM "
            "(SELECT *, ntile(2) OVER (ORDER BY arrival_ns, request) AS half FROM request) WHERE half = 2",
            format="arrow",
        ).columns
    return float(share.as_py())


def replay(base: Path, cell: Recording, measured: Outcome) -> Said:
    """Predict the cell from a recording of another one."""
    size = f"num_gpu_blocks={cell.engine.blocks + 1}"
    command = [*KVTRACE, "replay", base, "--set", size, "--loop", "closed", "--json"]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    took = time.perf_counter() - began
    told = json.loads(done.stdout)["outcomes"]["what if"]
    return Said(told["hit_share"], measured.hit_share, took, told["latency_ms"]["job"][0])


def lmcache(cell: Recording, measured: Outcome) -> Said | None:
    """LMCache's simulator, with chunks of vLLM's block size."""
    try:
        simulator = importlib.import_module("lmcache.tools.cache_simulator.simulator")
    except ImportError:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for number, (length, _, chain) in enumerate(prompts(cell)):
            event = {
                "timestamp": number, "request_id": str(number), "chunk_size": cell.engine.block_size, "seq_len": length,
                "chunk_hashes": chain,
            }  # fmt: skip
            file.write(json.dumps(event) + "\n")
        file.flush()
        began = time.perf_counter()
        events = simulator.load_lookup_events([Path(file.name)])
        found = simulator.simulate(events, cell.engine.blocks * cell.engine.block_bytes, cell.engine.block_bytes)
        return Said(found["token_hit_rate"], measured.hit_share, time.perf_counter() - began)


def kvcache_simulator(cell: Recording, measured: float) -> Said | None:
    """kvcache-simulator, which warms up with the first half of the requests."""
    if not shutil.which("kvcache-simulator"):
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for length, output, chain in prompts(cell):
            record = {
                "input_length": length, "output_length": output, "block_size": cell.engine.block_size,
                "hash_ids": chain,
            }  # fmt: skip
            file.write(json.dumps(record) + "\n")
        file.flush()
        gib = cell.engine.blocks * cell.engine.block_bytes / 2**30
        command = [
            "kvcache-simulator", "run", "--trace", file.name, "--model", "llama-3.1-8b", "--kv-precision", "bf16_fp16",
            "--budgets-gib", str(gib), "--policies", "lru", "--format", "json",
        ]  # fmt: skip
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        took = time.perf_counter() - began
    told = json.loads(done.stdout)
    # It has no point for a size that holds all blocks: there its ceiling is reached.
    found = told["points"][0]["results"]["lru"] if told["points"] else told["ceiling"]
    return Said(found["hitRate"], measured, took)


def prompts(cell: Recording) -> list[tuple[int, int, list[str]]]:
    """Prompt and output tokens of each request as it came, and hashes of its prompt's full blocks."""
    return [
        (
            request.prompt_tokens,
            request.output_tokens,
            [
                str(request.chain.get(place, f"{request.number}-{place}"))
                for place in range(request.prompt_tokens // cell.engine.block_size)
            ],
        )
        for request in sorted(cell.requests, key=lambda request: request.arrival_ns)
    ]


if __name__ == "__main__":
    main()
