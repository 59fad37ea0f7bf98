"""Hands out a trace's columns: the only module of the viewer that knows how a trace is reached."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb
import pyarrow as pa

from kvtrace.queries import Trace

Columns = dict[str, list[Any]]
"""Column values by name, all of one length."""


class Source:
    """An open trace. A context manager; closing it lets others write the file again."""

    def __init__(self, path: Path) -> None:
        """Open `path` read-only.

        Raises:
            KvtraceError: the file is missing, is not a trace, or is of another version.
        """
        self.trace = Trace(path)
        self.tables = frozenset(self.columns("SELECT table_name FROM information_schema.tables")["table_name"])

    def table(self, query: str) -> pa.Table:
        """Ask for a result as an Arrow table."""
        return self.trace.sql(query, "arrow")

    def columns(self, query: str) -> Columns:
        """Ask for a result by column; for small results."""
        result: Columns = self.table(query).to_pydict()
        return result

    def row(self, query: str) -> dict[str, Any]:
        """Ask for a result of one row."""
        return {name: values[0] for name, values in self.columns(query).items()}

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Ask for a result by row; for small results."""
        result = self.columns(query)
        return [dict(zip(result, values, strict=True)) for values in zip(*result.values(), strict=True)]

    def has(self, table: str, where: str = "true") -> bool:
        """A table or view is in the trace and has such a row."""
        return table in self.tables and bool(self.columns(f"SELECT 1 AS n FROM {table} WHERE {where} LIMIT 1")["n"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.trace.close()


def summarise(query: str, **tables: pa.Table) -> pa.Table:
    """Ask about results that are at hand, by the names they are given here."""
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        found: pa.Table = connection.sql(query).to_arrow_table()
        return found
