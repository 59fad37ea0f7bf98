"""Engines of imported runs: their rows in `process`, `engine` and `engine_source`, and the keys of their requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb


@dataclass
class ImportedEngine:
    """An engine that other tools' files tell of. What they do not tell is None."""

    engine_id: int
    name: str
    source_id: int
    facts: dict[str, Any] = field(default_factory=dict)  # columns of table `engine`
    vllm_version: str | None = None
    preemption_mode: str | None = None
    batching: str | None = None
    host_blocks: int | None = None
    started_ns: int | None = None

    def insert(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Fill its rows."""
        connection.execute(
            "INSERT INTO process (process_id, roles, vllm_version, started_ns) VALUES (?, 'engine,worker', ?, ?)",
            [self.engine_id, self.vllm_version, self.started_ns],
        )
        facts = {
            "engine_id": self.engine_id,
            **{name: value for name, value in self.facts.items() if value is not None},
        }
        marks = ", ".join("?" * len(facts))
        connection.execute(f"INSERT INTO engine ({', '.join(facts)}) VALUES ({marks})", list(facts.values()))
        connection.execute(
            "INSERT INTO engine_source VALUES (?, ?, ?, ?, ?, ?)",
            [self.engine_id, self.source_id, self.name, self.preemption_mode, self.batching, self.host_blocks],
        )


def next_key(connection: duckdb.DuckDBPyConnection, table: str, column: str) -> int:
    """The first free key of a table, from 1."""
    return int(connection.execute(f"SELECT coalesce(max({column}), 0) + 1 FROM {table}").fetchall()[0][0])


def new_engine(connection: duckdb.DuckDBPyConnection, name: str, source_id: int) -> ImportedEngine:
    """An engine with the next free key. Insert it before the next one is made."""
    return ImportedEngine(next_key(connection, "process", "process_id"), name, source_id)


def add_source(connection: duckdb.DuckDBPyConnection, source_id: int, kind: str, file: str) -> None:
    """Fill the row of table `source`."""
    connection.execute("INSERT INTO source (source_id, kind, file) VALUES (?, ?, ?)", [source_id, kind, file])


def count_source(
    connection: duckdb.DuckDBPyConnection,
    source_id: int,
    what: str,
    rows: int,
    imported: int | None,
    target: str | None,
) -> None:
    """Fill a row of table `source_table`: what a file holds of a kind, and where it went."""
    connection.execute("INSERT INTO source_table VALUES (?, ?, ?, ?, ?)", [source_id, what, rows, imported, target])
