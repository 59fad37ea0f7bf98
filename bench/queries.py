"""Time of each canned query on a large trace.

    python bench/queries.py [--block-events 10000000] [--keep FILE] [--only NAME,NAME]

The trace is synthetic (`bench/synthetic.py`): ten million block events and, in proportion, what such a run records at
each level. Each query runs once to warm the file cache, then `--runs` times (once, if the first took over 20 s).
Best and median are printed; on a shared machine look at the best. Exit code 1 if any best exceeds `--limit-s`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import duckdb
from synthetic import build

from kvtrace.queries import Trace
from kvtrace.queries.catalogue import catalogue

SLOW_S = 20.0


def main() -> int:
    """Build the trace, time the queries, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--block-events", type=int, default=10_000_000)
    parser.add_argument("--limit-s", type=float, default=2.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="Write the trace here and keep it, or use it if it is there.")
    parser.add_argument("--only", default="", help="Only these queries, with commas between.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = options.keep or Path(temporary) / "trace.duckdb"
        if not path.exists():
            started = time.perf_counter()
            build(path, options.block_events)
            print(f"built in {time.perf_counter() - started:.0f} s, {path.stat().st_size / 1e6:.0f} MB", flush=True)
        names = options.only.split(",") if options.only else list(catalogue())
        with Trace(path) as trace:
            describe(trace)
            slow = [name for name in names if time_query(trace, name, options.runs) > options.limit_s]
    print(f"slower than {options.limit_s:g} s: {', '.join(slow) or 'none'}")
    return int(bool(slow))


def describe(trace: Trace) -> None:
    """Print how many rows the trace's tables have, and on what it is read."""
    tables = trace.sql("SELECT table_name FROM duckdb_tables() ORDER BY ALL", format="arrow")
    for table in tables["table_name"].to_pylist():
        rows = trace.sql(f'SELECT count(*) AS n FROM "{table}"', format="arrow")["n"][0].as_py()
        if rows > 1000:
            print(f"{table}: {rows:,} rows")
    print(
        f"DuckDB {duckdb.__version__}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}", flush=True
    )


def time_query(trace: Trace, name: str, runs: int) -> float:
    """Print a query's times; the best one, in seconds."""
    missing = trace.missing(name)
    first_s, _, rows = _seconds(trace, name)
    times = [_seconds(trace, name) for _ in range(runs if first_s < SLOW_S else 1)]
    wall_s, cpu_s = min(times)[:2]
    median_s = statistics.median(wall for wall, _, _ in times)
    note = f"  nothing in {', '.join(missing)}" if missing else ""
    print(
        f"{name:22} best {wall_s:7.3f} s, median {median_s:7.3f} s, {cpu_s:7.3f} s CPU {rows:>9,} rows{note}",
        flush=True,
    )
    return wall_s


def _seconds(trace: Trace, name: str) -> tuple[float, float, int]:
    """Wall and CPU time, and rows: where the times differ much from cores to one, somebody else used the machine."""
    wall, cpu = time.perf_counter(), time.process_time()
    rows = trace.query(name, format="arrow").num_rows
    return time.perf_counter() - wall, time.process_time() - cpu, rows


if __name__ == "__main__":
    sys.exit(main())
