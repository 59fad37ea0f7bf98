"""Opens a trace read-only and hands out columns: the only module of the viewer that knows how a trace is reached."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb

from kvtrace.errors import KvtraceError

TRACE_VERSION = "1"

Columns = dict[str, list[Any]]
"""Column values by name, all of one length."""


class Source:
    """An open trace. A context manager; closing it lets others write the file again."""

    def __init__(self, path: Path) -> None:
        """Open `path`.

        Raises:
            KvtraceError: the file is missing, is not a trace, or is of another version.
        """
        if not path.is_file():
            raise KvtraceError(f"{path}: no such file; `kvtrace ingest RUN` makes one from a recording")
        try:
            self._connection = duckdb.connect(str(path), read_only=True)
        except duckdb.Error as error:
            reason = str(error).splitlines()[0]
            raise KvtraceError(f"{path}: cannot be read as a trace (a DuckDB file was expected): {reason}") from error
        try:
            self._check_version(path)
        except BaseException:
            self._connection.close()
            raise

    def _check_version(self, path: Path) -> None:
        try:
            found = self.columns("SELECT value FROM run WHERE key = 'trace_version'")["value"]
        except duckdb.Error as error:
            raise KvtraceError(f"{path}: a DuckDB file, but not a kvtrace trace (it has no table `run`)") from error
        if found != [TRACE_VERSION]:
            version = found[0] if found else "none"
            raise KvtraceError(
                f"{path}: trace version {version}, this kvtrace reads {TRACE_VERSION}; ingest the recording again"
            )

    def columns(self, query: str) -> Columns:
        """The result of a query, by column."""
        result: Columns = self._connection.sql(query).to_arrow_table().to_pydict()
        return result

    def row(self, query: str) -> dict[str, Any]:
        """The only row of a query's result."""
        return {name: values[0] for name, values in self.columns(query).items()}

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The result of a query, by row; for small results."""
        result = self.columns(query)
        return [dict(zip(result, values, strict=True)) for values in zip(*result.values(), strict=True)]

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connection.close()
