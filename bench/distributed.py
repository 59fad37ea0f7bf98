"""Every canned query on DuckDB and on Spark, over the same Parquet: do they agree, and what does each take?

    python bench/distributed.py [--block-events 100000000] [--folder DIR] [--master 'local-cluster[2,1,6144]']

The trace is synthetic (`bench/synthetic.py`), exported with `kvtrace export --parquet`. Each query runs once on each
engine, from cold plans, its answer fetched. A line is printed as each is done and kept in `DIR/times.jsonl`, so a run
that was stopped goes on where it was, and asks again what failed; DIR needs about 25 bytes a block event, and about 60
for what Spark spills. Exit code 1 if an answer differs, or if Spark was stopped before it had one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
from same_answers import difference
from synthetic import build

from kvtrace.errors import KvtraceError
from kvtrace.export.parquet import export_parquet
from kvtrace.queries.backends.lake import Lake, LakeTrace
from kvtrace.queries.backends.spark import SparkTrace, spark_session
from kvtrace.queries.catalogue import catalogue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUN = "synthetic"


def main() -> int:
    """Make the set, ask both engines, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--block-events", type=int, default=100_000_000)
    parser.add_argument("--folder", type=Path, help="Keep trace, Parquet and times here, and use what is there.")
    parser.add_argument("--master", default="local-cluster[2,1,6144]", help="The Spark cluster.")
    parser.add_argument("--memory", default="4GB", help="DuckDB's memory limit.")
    parser.add_argument("--only", default="", help="Only these queries, with commas between.")
    parser.add_argument("--limit-s", type=float, default=900, help="A query may take Spark so long.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        lake = parquet(folder, options.block_events, options.memory)
        names = options.only.split(",") if options.only else list(catalogue())
        return compare(lake, names, folder / "times.jsonl", options)


def parquet(folder: Path, block_events: int, memory: str) -> Lake:
    """The exported set; it is made if it is not there."""
    if not (folder / "parquet" / f"manifest-{RUN}.json").exists():
        trace = folder / "trace.duckdb"
        if not trace.exists():
            started = time.perf_counter()
            made = folder / "unfinished.duckdb"
            made.unlink(missing_ok=True)
            build(made, block_events, memory)
            made.rename(trace)
            print(f"built {trace.stat().st_size / 1e9:.2f} GB in {time.perf_counter() - started:.0f} s", flush=True)
        started = time.perf_counter()
        rows = export_parquet(trace, folder / "parquet", run=RUN, force=True)
        size = sum(file.stat().st_size for file in (folder / "parquet").rglob("*.parquet"))
        print(
            f"exported {sum(rows.values()):,} rows, {rows['block_event']:,} block events, {size / 1e9:.2f} GB "
            f"in {time.perf_counter() - started:.0f} s",
            flush=True,
        )
    return Lake(folder / "parquet", RUN)


def compare(lake: Lake, names: list[str], kept: Path, options: argparse.Namespace) -> int:
    """Ask both engines each query that does not agree in `kept`; print all times. 1 if an answer differs."""
    master: str = options.master
    rows = map(json.loads, kept.read_text().splitlines()) if kept.exists() else ()
    done = {row["query"]: row for row in rows if not row["difference"]}
    started = time.perf_counter()
    session = session_on(master, kept.parent)
    session.sql("SELECT count(*) FROM range(1000)").collect()
    up_s = time.perf_counter() - started
    print(
        f"DuckDB {duckdb.__version__}, Spark {session.version} on {master} up in {up_s:.0f} s, "
        f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    with LakeTrace(lake, memory_limit=options.memory) as duck, SparkTrace(lake, session) as spark:
        for name in names:
            if name not in done:
                done[name] = ask(
                    name, duck, spark, threading.Timer(options.limit_s, session.sparkContext.cancelAllJobs)
                )
                with kept.open("a") as file:
                    file.write(json.dumps(done[name]) + "\n")
            row = done[name]
            print(
                f"{name:22} DuckDB {row['duckdb_s']:8.2f} s, Spark {row['spark_s']:8.2f} s, {row['rows']:>9,} rows  "
                f"{row['difference'] or 'same'}",
                flush=True,
            )
    asked = [done[name] for name in names]
    differing = [row["query"] for row in asked if row["difference"]]
    print(
        f"{len(asked)} queries: DuckDB {sum(row['duckdb_s'] for row in asked):.0f} s, "
        f"Spark {sum(row['spark_s'] for row in asked):.0f} s; different: {', '.join(differing) or 'none'}"
    )
    return int(bool(differing))


def session_on(master: str, folder: Path) -> SparkSession:
    """A session that spills into the folder; executors of a local cluster have all of the memory of their workers.

    Left alone, Spark gives each 1 GB, whatever the worker has.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).config("spark.driver.memory", "3g")
    builder = builder.config("spark.local.dir", str((folder / "spill").resolve()))
    if local := re.fullmatch(r"local-cluster\[\d+,\d+,(\d+)\]", master):
        builder = builder.config("spark.executor.memory", f"{local[1]}m")
    builder.getOrCreate()
    return spark_session(master)


def ask(name: str, duck: LakeTrace, spark: SparkTrace, limit: threading.Timer) -> dict[str, Any]:
    """Both engines' times for a query, and the first difference of their answers. The limit is Spark's."""
    started = time.perf_counter()
    wanted = duck.query(name, format="arrow")
    asked = time.perf_counter()
    limit.start()
    try:
        found = spark.query(name, format="arrow")
        ended = time.perf_counter()
        unlike = difference(wanted, found)
    except KvtraceError as error:
        ended = time.perf_counter()
        unlike = str(error)
    finally:
        limit.cancel()
    return {
        "query": name,
        "rows": wanted.num_rows,
        "duckdb_s": asked - started,
        "spark_s": ended - asked,
        "difference": unlike,
    }


if __name__ == "__main__":
    sys.exit(main())
