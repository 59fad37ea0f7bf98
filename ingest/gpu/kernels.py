"""Hands out the keys of table `kernel_name` while profiles are read, and fills the table."""

from __future__ import annotations

from typing import NamedTuple

import duckdb

from kvtrace.ingest.gpu.names import classify, short_name


class Name(NamedTuple):
    """A kernel's names, as far as the profiler kept them."""

    source_id: int
    short: str | None
    demangled: str
    mangled: str | None


class KernelNames:
    """The kernel names of all sources; keys count from 1."""

    def __init__(self) -> None:
        self._names: list[Name] = []

    def add(self, name: Name) -> int:
        """A new key for a name."""
        self._names.append(name)
        return len(self._names)

    def insert(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Fill table `kernel_name`, with what each kernel is for."""
        rows = []
        for key, name in enumerate(self._names, 1):
            verdict = classify(name.demangled)
            role = verdict.role.name if verdict.role else None
            short = name.short or short_name(name.demangled)
            rows.append(
                [key, name.source_id, short, name.demangled, name.mangled, verdict.category.name, verdict.rule, role]
            )
        if rows:
            connection.executemany("INSERT INTO kernel_name VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
