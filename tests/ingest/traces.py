"""Traces of a few events, for what ingest works out from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import duckdb

from kvtrace.ingest.schema.trace import create_schema

BLOCK_TOKENS = 16


class Events:
    """An empty trace with one engine, and short ways to add events. Times are whatever the caller counts in, in ns."""

    def __init__(self, *, prefix_caching: bool = True) -> None:
        self.connection = duckdb.connect()
        create_schema(self.connection)
        self.add("engine", engine_id=1, block_size_tokens=BLOCK_TOKENS, prefix_caching=prefix_caching)

    def add(self, table: str, **values: Any) -> None:
        names, places = ", ".join(values), ", ".join("?" * len(values))
        self.connection.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", list(values.values()))

    def replace(self, table: str, columns: str) -> None:
        """Put a table in place of what the schema has of that name, if anything."""
        for kind, name in self.rows(
            f"SELECT table_type, table_name FROM information_schema.tables WHERE table_name = '{table}'"
        ):
            self.connection.execute(f"DROP {'VIEW' if kind == 'VIEW' else 'TABLE'} {name}")
        self.connection.execute(f"CREATE TABLE {table} ({columns})")

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()

    def request(self, request: int, name: str) -> None:
        self.add("request", request=request, engine_id=1, external_id=name)

    def lookup(
        self,
        at: int,
        request: int,
        tokens: int,
        hit: int = 0,
        *,
        chain: Iterable[int] = (),
        plain: Iterable[int] = (),
        **more: Any,
    ) -> None:
        """An admitted lookup, whose step is its time; `chain` are the hashes from the first missing block on."""
        values = {"admitted": True, "resumed": False, "enabled": True} | more
        self.add(
            "prefix_lookup",
            engine_id=1,
            time_ns=at,
            step=at,
            request=request,
            queried_tokens=tokens,
            local_hit_tokens=hit,
            **values,
        )
        tokens_of = dict(enumerate(plain, hit // BLOCK_TOKENS))
        for position, block_hash in enumerate(chain, hit // BLOCK_TOKENS):
            self.add(
                "request_hash",
                engine_id=1,
                step=at,
                request=request,
                position=position,
                block_hash=block_hash,
                token_hash=tokens_of.get(position),
            )

    def block(
        self, at: int, op: str, block_id: int, block_hash: int | None = None, request: int = 0, **more: Any
    ) -> None:
        values = {"ref_count": 0, "kv_group": 0 if block_hash else None, "pool": 0} | more
        self.add(
            "block_event",
            engine_id=1,
            time_ns=at,
            step=at,
            block_id=block_id,
            op=op,
            request=request or None,
            block_hash=block_hash,
            **values,
        )

    def store(self, at: int, request: int, *hashes: int, first_block: int = 1, **more: Any) -> None:
        for block_id, block_hash in enumerate(hashes, first_block):
            self.block(at, "cache", block_id, block_hash, request, ref_count=1, **more)

    def turn(self, at: int, op: str, request: int) -> None:
        self.add("request_event", engine_id=1, time_ns=at, step=at, request=request, op=op)
