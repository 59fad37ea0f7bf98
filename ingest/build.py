"""Building a trace beside its name and renaming it into place, so that a reader never sees half of one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from kvtrace.errors import KvtraceError
from kvtrace.ingest.schema.trace import create_schema
from kvtrace.queries.text import first_line, quoted
from kvtrace.queries.trace import JOINS, hide_progress

STORAGE_VERSION = "v1.5.0"
"""Storage version of traces. The oldest DuckDB that kvtrace supports can open them."""

MEMORY_LIMIT_MB = 1000
LARGEST_THREADS = 8


@contextmanager
def new_trace(target: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open an empty trace that takes `target`'s place once the block ends without an error.

    After an error, Ctrl-C included, `target` is as it was and nothing else is left behind.

    Raises:
        KvtraceError: `target` cannot be written, is not a trace, or is in use; or DuckDB failed (a full disk, say).
    """
    target = target.resolve()
    check_replaceable(target)
    partial = target.with_name(f"{target.name}.partial")
    _remove_stale(partial)
    ours = True
    try:
        try:
            connection = _open(partial)
        except duckdb.IOException as error:
            ours = not _is_locked(error)
            raise
        try:
            create_schema(connection)
            yield connection
            connection.execute("CHECKPOINT")
        finally:
            connection.close()
        _sync(partial)
        _beside(target, ".wal").unlink(missing_ok=True)
        partial.replace(target)
        _sync(target.parent)
    except duckdb.InterruptException as error:
        raise KeyboardInterrupt from error
    except RuntimeError as error:
        if str(error) == "Query interrupted":  # what DuckDB's module makes of a Ctrl-C while a query runs
            raise KeyboardInterrupt from error
        raise
    except duckdb.Error as error:
        raise KvtraceError(f"{target} was not made: DuckDB says: {first_line(error)}{_advice(error)}") from error
    except OSError as error:
        raise KvtraceError(f"{target} was not made: {error}{_advice(error)}") from error
    finally:
        if ours:
            _remove(partial)


def _advice(error: Exception) -> str:
    return "; choose another place for the trace with -o" if os.strerror(errno.ENOSPC) in str(error) else ""


def check_replaceable(target: Path) -> None:
    """Refuse a target that is in use, cannot be written, or holds something else than a trace.

    Raises:
        KvtraceError: Says which.
    """
    if not target.parent.is_dir():
        raise KvtraceError(f"{target.parent} is no directory, so {target.name} cannot be written there")
    if not os.access(target.parent, os.W_OK):
        raise KvtraceError(f"{target.parent} is not writable; choose another place for the trace with -o")
    if target.exists() and not _is_trace(target):
        raise KvtraceError(f"{target} exists and is not a kvtrace trace; remove it, or choose another name with -o")


def _is_trace(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        if file.read(12)[8:] != b"DUCK":
            return False
    try:
        with duckdb.connect(str(path), read_only=True) as connection:
            # `run` may be a view of a stranger's, over files and the network
            named = "SELECT 1 FROM duckdb_tables() WHERE schema_name = 'main' AND table_name = 'run'"
            if connection.execute(named).fetchone() is None:
                return False
            found = connection.execute("SELECT 1 FROM main.run WHERE key = 'trace_version'").fetchone()
    except duckdb.CatalogException:
        return False
    except duckdb.Error as error:
        if _is_locked(error) or isinstance(error, duckdb.ConnectionException):
            raise KvtraceError(
                f"{path} is open for writing elsewhere; close it there first: {first_line(error)}"
            ) from error
        return False
    return found is not None


def _is_locked(error: duckdb.Error) -> bool:
    """Return whether another process has the database open; DuckDB has no error class for it."""
    return "Could not set lock" in str(error)


def _open(path: Path) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config=JOINS)
    try:
        threads = max(2, min(LARGEST_THREADS, len(os.sched_getaffinity(0))))
        connection.execute(f"SET threads = {threads}")
        connection.execute(f"SET memory_limit = '{MEMORY_LIMIT_MB}MB'")
        connection.execute(f"SET temp_directory = {quoted(str(_beside(path, '.tmp')))}")
        connection.execute("SET preserve_insertion_order = true")
        hide_progress(connection)
        connection.execute(f"ATTACH {quoted(str(path))} AS new_trace {_storage_option()}")
        connection.execute("USE new_trace")
    except BaseException:
        connection.close()
        raise
    return connection


def _storage_option() -> str:
    newer = int(duckdb.__version__.split(".")[0]) >= 2
    return f"(STORAGE_VERSION '{STORAGE_VERSION}')" if newer else ""


def _remove_stale(partial: Path) -> None:
    """Remove what a killed ingest left, but not what a living one is writing."""
    if not partial.exists():
        return
    with partial.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise KvtraceError(f"{partial} is being written by another `kvtrace ingest`; wait for it to end") from error
    _remove(partial)


def _remove(partial: Path) -> None:
    for path in (partial, _beside(partial, ".wal")):
        with contextlib.suppress(OSError):
            path.unlink()
    shutil.rmtree(_beside(partial, ".tmp"), ignore_errors=True)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
