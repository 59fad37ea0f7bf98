"""Choice of the engine that answers: DuckDB a trace, DuckDB or Spark the Parquet files of one."""

from __future__ import annotations

from pathlib import Path

from kvtrace.errors import KvtraceError, needs_extra
from kvtrace.queries import Trace

ENGINES = ("duckdb", "spark")


def open_with(path: Path, engine: str = "duckdb", run: str | None = None) -> Trace:
    """Open a trace, or the folder of an export, for canned queries.

    Args:
        path: A file made by `kvtrace ingest`, or a folder filled by `kvtrace export --parquet`.
        engine: "duckdb"; "spark", on the cluster that Spark's configuration names or else in this process;
            "spark=MASTER" with the cluster's address.
        run: The run in the folder, if it has several.

    Raises:
        KvtraceError: there is no such engine, it is not installed, or the path is nothing it can read.
    """
    name, _, master = engine.partition("=")
    if name not in ENGINES or (name == "duckdb" and master):
        raise KvtraceError(f"--engine {engine!r}: expected duckdb, spark or spark=MASTER", 2)
    if name == "duckdb" and not _is_lake(path):
        if run is not None:
            raise KvtraceError(f"--run-id goes with a folder that `kvtrace export --parquet` filled; {path} is none", 2)
        return Trace(path)
    from kvtrace.queries.backends.lake import Lake, LakeTrace

    if name == "duckdb":
        return LakeTrace(Lake(path, run))
    if path.is_file():
        raise KvtraceError(
            f"{path} is a file; --engine spark reads the folder that `kvtrace export {path} --parquet DIR` writes"
        )
    lake = Lake(path, run)
    with needs_extra("spark", "--engine spark"):
        from kvtrace.queries.backends.spark import SparkTrace, spark_session
    return SparkTrace(lake, spark_session(master or None))


def _is_lake(path: Path) -> bool:
    return path.is_dir() and any(path.glob("manifest-*.json"))
