"""Traces of a simulated engine: multi-turn chats in a pool too small for them, by the model that benchmarks use.

Times, block moves and counts agree with each other as they do in a recorded trace, so that what the page shows can be
checked against the trace. No figure of it was measured on anything.
"""

from __future__ import annotations

import hashlib
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from bench.simulate import BLOCK_TOKENS, Load, Tile
from kvtrace.events import BOOL, EVENTS, HASH, REQUEST, TIME, Field
from kvtrace.ingest.derive.requests import insert_requests
from kvtrace.ingest.schema.trace import TRACE_VERSION, create_schema

EPOCH_NS = 1_760_000_000_000_000_000
SHARED_BLOCKS = 4
CHATS = Load(
    budget_tokens=256,
    max_seqs=8,
    system_blocks=SHARED_BLOCKS,
    prompt_tokens=(124, 284),
    output_tokens=(24, 128),
    added_tokens=(20, 90),
    think_ms=(50, 500),
    start_ns=3_000_000_000,
    apart_ns=90_000_000,
    step_ns=2_600_000,
    token_ns=21_000,
)
SESSIONS, TURNS = 10, 4
TABLES = (
    *("request_arrival", "request_owner", "request_queued", "request_event", "prefix_lookup", "block_event"),
    *("step_schedule", "step_request", "step_update"),
)


def content_hash(number: int) -> int:
    """64 bits for the model's number of a content; the first `SHARED_BLOCKS` numbers are every chat's."""
    return int.from_bytes(hashlib.sha256(str(number).encode()).digest()[:8], "little") | 1


class Engine:
    """Events of an engine as rows of tables. Its requests are numbered after those of the engines before it."""

    def __init__(self, engine_id: int, blocks: int) -> None:
        self.engine_id, self.before = engine_id, (engine_id - 1) * SESSIONS * TURNS
        self.records = Tile(range(1, blocks + 1), {}, SESSIONS, engine_id, CHATS).run().records
        queued = [EVENTS["request_queued"].record(*row) for _, *row in self.records["request_queued"]]
        self.chats = {row.request: (row.session - 1, row.turn) for row in queued}

    @property
    def internal_ids(self) -> list[str]:
        """The requests' internal ids, in the order of their numbers."""
        return [f"chatcmpl-{chat:02d}-{turn}-{number:08x}" for number, (chat, turn) in sorted(self.chats.items())]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of an event's table."""
        event = EVENTS[table]
        return [
            {event.process_column: self.engine_id}
            | {field.name: self._value(field, value) for field, value in zip(event.fields, row, strict=True)}
            for _, *row in self.records[table]
        ]

    def _value(self, field: Field, value: int) -> Any:
        if value == field.type.null:
            return None
        if field.enum:
            return field.enum(value).name
        if field.name == "session":
            return f"session-{value - 1:02d}"
        if field.name == "tenant":
            return f"tenant-{(value - 1) % 3}"
        if field.name == "external_id":
            chat, turn = self.chats[value]
            return f"chat-{chat:02d}/turn-{turn}"
        if field.type is TIME or field.name == "arrival_ns":
            return EPOCH_NS + value
        if field.type is REQUEST:
            return self.before + value
        if field.type is HASH:
            return content_hash(value)
        return bool(value) if field.type is BOOL else value


def create_trace(path: Path, engines: int = 1, blocks: int = 88) -> Path:
    """Write a trace of `engines` simulated engines; with 0 engines, one in which nothing was recorded."""
    path.write_bytes(_trace(engines, blocks))
    return path


@cache
def _trace(engines: int, blocks: int) -> bytes:
    """The file, made once: many tests change a copy of the same one."""
    with tempfile.TemporaryDirectory() as folder:
        return _write_trace(Path(folder) / "trace.duckdb", engines, blocks).read_bytes()


def _write_trace(path: Path, engines: int, blocks: int) -> Path:
    made = [Engine(engine_id, blocks) for engine_id in range(1, engines + 1)]
    with duckdb.connect(str(path)) as connection:
        create_schema(connection)
        insert(connection, "run", [{"key": key, "value": value} for key, value in _run_facts(engines).items()])
        for engine in made:
            for table in TABLES:
                insert(connection, table, engine.rows(table))
            insert(connection, "engine", [_engine_facts(engine.engine_id, blocks)])
            insert(connection, "process", [_process_facts(engine.engine_id)])
        if made:
            insert_requests(connection, [name for engine in made for name in engine.internal_ids])
            connection.execute("UPDATE request SET lora = 'adapter' WHERE tenant = 'tenant-0'")
    return path


def insert(connection: duckdb.DuckDBPyConnection, table: str, rows: list[dict[str, Any]]) -> None:
    """Add rows to a table, by column name; columns not named are NULL."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    types = {"block_hash": pa.uint64()}
    batch = pa.table({name: pa.array([row.get(name) for row in rows], types.get(name)) for name in columns})
    connection.register("batch", batch)
    connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM batch")
    connection.unregister("batch")


def _run_facts(engines: int) -> dict[str, str]:
    facts = {
        "trace_version": str(TRACE_VERSION),
        "kvtrace_version": "0.1.0",
        "command": '["simulated", "multi-turn", "chats"]',
        "started_ns": str(EPOCH_NS),
    }
    return facts | ({"vllm_version": "simulated", "exit_code": "0"} if engines else {})


def _engine_facts(engine_id: int, blocks: int) -> dict[str, Any]:
    return {
        "engine_id": engine_id,
        "model": "simulated",
        "block_size_tokens": BLOCK_TOKENS,
        "blocks": blocks,
        "kv_groups": 1,
        "max_num_batched_tokens": CHATS.budget_tokens,
        "max_num_seqs": CHATS.max_seqs,
        "max_model_len": 2048,
        "policy": "fcfs",
        "prefix_caching": True,
        "chunked_prefill": True,
        "async_scheduling": False,
        "block_bytes": 2 * 8 * 64 * 2 * BLOCK_TOKENS * 4,
        "tp_size": 1,
        "pp_size": 1,
    }


def _process_facts(engine_id: int) -> dict[str, Any]:
    return {
        "process_id": engine_id,
        "roles": "engine",
        "host": "simulated",
        "pid": 100 + engine_id,
        "dp_rank": engine_id - 1,
        "started_ns": EPOCH_NS,
    }
