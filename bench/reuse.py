"""Time and memory of miss-ratio curves, and the error of sampled ones.

    python bench/reuse.py [--lookups 10000000] [--keep FILE]

A synthetic request trace (nobody ran it): sessions that begin at random, each with one of 200 system prompts of 10 to
60 blocks by Zipf's law, and turns that send all turns before again. It is written as `request` and `request_hash` rows,
the way imported request traces are, read back by `read_references` and analysed. `single` is the same number of lookups
of unrelated blocks by Zipf's law: nothing is gained there from prompts being looked up whole.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import duckdb
import numpy as np
import pyarrow as pa

from kvtrace.ingest.schema.trace import TRACE_VERSION, create_schema
from kvtrace.queries import Trace
from kvtrace.queries.reuse import References, miss_ratios, read_references, sample

Answer = TypeVar("Answer")
RATES = (0.1, 0.01, 0.001)
SYSTEM_PROMPTS = 200
TURN_BLOCKS = 12
MEAN_TURNS = 8
BLOCK_TOKENS = 16


def build(path: Path, lookups: int) -> None:
    """Write a trace with about so many full blocks looked up."""
    random = np.random.default_rng(1)
    sessions = max(1, round(lookups / (MEAN_TURNS * (33 + TURN_BLOCKS * MEAN_TURNS))))
    turns = random.geometric(1 / MEAN_TURNS, sessions)
    session = np.repeat(np.arange(sessions), turns)
    turn = np.arange(len(session)) - np.repeat(np.cumsum(turns) - turns, turns)
    start = random.random(sessions) * 86_400e9
    arrival = start[session] + turn * 60e9 * random.exponential(1, len(session))
    prompt = np.minimum(random.zipf(1.3, sessions) - 1, SYSTEM_PROMPTS - 1)
    shared = random.integers(10, 60, SYSTEM_PROMPTS)[prompt]
    order = np.argsort(arrival)
    session, turn, arrival = session[order], turn[order], arrival[order].astype(np.int64)
    blocks = shared[session] + TURN_BLOCKS * (turn + 1)
    request = np.repeat(np.arange(len(blocks)), blocks)
    position = np.arange(blocks.sum()) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    of_prompt = position < shared[session][request]
    named = np.where(of_prompt, prompt[session][request], SYSTEM_PROMPTS + session[request])
    _write(
        path, arrival, blocks, request, position, named.astype(np.uint64) << np.uint64(32) | position.astype(np.uint64)
    )


def _write(
    path: Path, arrival: np.ndarray, blocks: np.ndarray, request: np.ndarray, position: np.ndarray, name: np.ndarray
) -> None:
    with duckdb.connect(str(path)) as con:
        create_schema(con)
        con.execute(
            f"INSERT INTO run VALUES ('trace_version', '{TRACE_VERSION}'), ('source', 'bench/reuse.py: synthetic')"
        )
        con.execute(
            f"INSERT INTO engine (engine_id, block_size_tokens, block_bytes) VALUES (1, {BLOCK_TOKENS}, 2097152)"
        )
        rows = pa.table(
            {"request": np.arange(len(blocks)), "prompt_tokens": blocks * BLOCK_TOKENS + 1, "arrival_ns": arrival}
        )
        con.execute("INSERT INTO request BY NAME SELECT *, 1 AS engine_id FROM rows")
        chains = pa.table({"request": request, "position": position, "name": name})
        con.execute(
            "INSERT INTO request_hash BY NAME "
            "SELECT 1 AS engine_id, request, position, hash(name) AS block_hash FROM chains"
        )
        del rows, chains


def timed(what: str, run: Callable[[], Answer]) -> Answer:
    """Run, print wall and CPU seconds and the peak memory so far."""
    wall, cpu = time.perf_counter(), time.process_time()
    answer = run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  {what:44} {wall:7.2f} s wall {cpu:7.2f} s CPU {peak:7.0f} MiB peak", flush=True)
    return answer


def measure(references: References) -> None:
    """Time exact and sampled curves; print how far the sampled ones are off."""
    print(f"  {references.lookups:,.0f} lookups of {references.blocks:,} blocks")
    sizes = np.unique(np.geomspace(100, references.blocks, 40).astype(int))
    whole = sample(references)
    exact = timed("exact LRU curve, all sizes", lambda: whole.lru(sizes))
    bound = timed("exact Belady, 2 sizes", lambda: whole.belady(sizes[[25, 35]]))
    for rate in RATES:
        part = sample(references, rate)
        asked = sizes >= part.smallest
        timed(f"LRU curve of a sample of {rate:g}", lambda part=part: part.lru(sizes))
        timed(f"Belady of a sample of {rate:g}, 2 sizes", lambda part=part: part.belady(sizes[[25, 35]]))
        if asked.any():
            off = np.abs(part.lru(sizes[asked]) - exact[asked])
            error = miss_ratios(part, sizes[asked]).lru_error
            print(
                f"    LRU off by {off.mean():.4f} on average, {off.max():.4f} at most, at sizes from {part.smallest:,}"
            )
            print(f"    its own estimate of that: {error.mean():.4f} on average, {error.max():.4f} at most")
        off = np.abs(part.belady(sizes[[25, 35]]) - bound)
        print(f"    Belady off by {', '.join(f'{value:.4f}' for value in off)} at sizes {sizes[25]:,}, {sizes[35]:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lookups", type=int, default=10_000_000)
    parser.add_argument("--keep", type=Path, help="Write the trace here and keep it, or use it if it is there.")
    options = parser.parse_args()
    print(f"numpy {np.__version__}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as temporary:
        path = options.keep or Path(temporary) / "trace.duckdb"
        if not path.exists():
            build(path, options.lookups)
        print(f"prompts ({path.stat().st_size / 1e6:.0f} MB)")
        with Trace(path) as trace:
            (engine,) = timed("read_references", lambda: read_references(trace))
    measure(engine.references)
    del engine
    print("single")
    random = np.random.default_rng(2)
    weights = np.arange(1, 3_000_001) ** -0.9
    keys = np.searchsorted(np.cumsum(weights / weights.sum()), random.random(options.lookups)).astype(np.uint64)
    measure(timed("References.of", lambda: References.of(keys)))


if __name__ == "__main__":
    main()
