"""The block references of a trace, engine by engine, in the order in which the engine made them.

Recordings have three kinds: lookups (view block_lookup), stores (block_event cache: from then on the block can be
found) and releases (block_event free: a request no longer holds it; blocks released are as recent as blocks looked up).
Imported request traces have lookups only. docs/reuse.md has the definitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from kvtrace.errors import KvtraceError
from kvtrace.queries.reuse.distance import References, grouped

if TYPE_CHECKING:
    import pyarrow as pa


class Asked(Protocol):
    """Anything that answers SQL: a `Trace`, or one that is being made."""

    @property
    def path(self) -> Path | str:
        """Its name, for messages."""

    def sql(self, text: str, *, format: Literal["arrow"]) -> pa.Table:  # noqa: A002 - as in `Trace`
        """Answer a SELECT."""


_ENGINES = "SELECT engine_id, block_size_tokens, block_bytes, blocks AS pool_blocks FROM engine ORDER BY ALL"

_LOOKUPS = """
SELECT time_ns, 0 AS kind, request, block_hash, counted, coalesce(hit::TINYINT, -1) AS hit
FROM block_lookup WHERE engine_id = {engine}
ORDER BY time_ns, request, position DESC
"""

_CHANGES = """
WITH change AS (
    SELECT time_ns, block_id, op, ref_count, block_hash, request, rowid AS place
    FROM block_event WHERE engine_id = {engine} AND pool = 0
)
SELECT
    time_ns, kind, coalesce(request, 0) AS request, coalesce(block_hash, 0) AS block_hash, false AS counted, -1 AS hit
FROM (
    SELECT time_ns, 1 AS kind, request, block_hash, place FROM change WHERE op = 'cache'
    UNION ALL
    SELECT f.time_ns, 2, f.request, n.block_hash, f.place
    FROM (FROM change WHERE op = 'free') f
    ASOF JOIN (FROM change WHERE op IN ('allocate', 'cache', 'evict')) n
        ON f.block_id = n.block_id AND f.place > n.place
    WHERE n.op = 'cache'
    UNION ALL
    SELECT time_ns, 3, NULL, NULL, place FROM change WHERE op = 'reset'
)
ORDER BY place
"""

_LOOKUP, _STORE, _RELEASE, _RESET = range(4)


@dataclass(frozen=True)
class EngineReferences:
    """An engine's block references, and what is known of its pool.

    Args:
        engine_id: The engine.
        references: All of them, in order.
        block_tokens: Tokens a block.
        block_bytes: Bytes of KV a block holds on one rank; None if unknown.
        pool_blocks: Blocks of its GPU pool; None if imported.
        recorded_hits: Lookups that the pool had; None if imported.
    """

    engine_id: int
    references: References
    block_tokens: int
    block_bytes: int | None
    pool_blocks: int | None
    recorded_hits: int | None


def read_references(trace: Asked) -> list[EngineReferences]:
    """Read each engine's block references.

    Raises:
        KvtraceError: the trace has none.
    """
    found = find_references(trace)
    if not found:
        raise KvtraceError(
            f"{trace.path} has no lookups of named blocks: prefix caching was off, nothing was admitted, or it was "
            'recorded by a kvtrace that did not name them; `kvtrace sql TRACE "FROM stream"` shows what it has'
        )
    return found


def find_references(trace: Asked) -> list[EngineReferences]:
    """Read the block references of each engine that looked blocks up; none where nothing was."""
    engines = trace.sql(_ENGINES, format="arrow").to_pylist()
    return [engine for engine in (_read_engine(trace, engine) for engine in engines) if engine is not None]


def _read_engine(trace: Asked, engine: dict[str, Any]) -> EngineReferences | None:
    lookups = _columns(trace, _LOOKUPS, engine["engine_id"])
    counted = lookups["hit"][lookups["counted"]]  # -1 where the trace does not tell
    if not len(counted):
        return None
    recorded = bool((counted >= 0).any())
    changes = _columns(trace, _CHANGES, engine["engine_id"]) if recorded else None
    return EngineReferences(
        engine["engine_id"],
        _references(lookups if changes is None else _merged(lookups, changes), recorded),
        engine["block_size_tokens"],
        engine["block_bytes"],
        engine["pool_blocks"],
        int((counted == 1).sum()) if recorded else None,
    )


Columns = dict[str, "np.ndarray[Any, Any]"]


def _columns(trace: Asked, sql: str, engine_id: int) -> Columns:
    table = trace.sql(sql.format(engine=int(engine_id)), format="arrow")
    types = {"time_ns": "i8", "kind": "i1", "request": "i8", "block_hash": "u8", "counted": "?", "hit": "i1"}
    return {name: table[name].to_numpy().astype(kind) for name, kind in types.items()}


def _merged(lookups: Columns, changes: Columns) -> Columns:
    """Both by time; each is in order, and a lookup goes before what follows from it."""
    order = np.argsort(np.concatenate((lookups["time_ns"], changes["time_ns"])), kind="stable")
    return {name: np.concatenate((lookups[name], changes[name]))[order] for name in lookups}


def _references(columns: Columns, recorded: bool) -> References:
    kind = columns["kind"]
    moment = [np.diff(columns[name], prepend=columns[name][:1]) != 0 for name in ("time_ns", "kind", "request")]
    event = np.cumsum(np.logical_or.reduce(moment))
    # After a reset equal hashes are other blocks: what was there before is never found again.
    key = columns["block_hash"] + np.cumsum(kind == _RESET).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    kept = kind != _RESET
    key, event, counted, kind = key[kept], event[kept], columns["counted"][kept], kind[kept]
    followed = _after_first_store(key, kind) if recorded else np.ones(len(key), bool)
    uncached = int(counted[~followed].sum())
    # KV cache groups have a block each of the same content, stored and released together: it counts once.
    return References.of(key[followed], event[followed], counted[followed], uncached)


def _after_first_store(key: Any, kind: Any) -> Any:
    """References other than lookups of blocks that nobody had stored yet (some may have been computing them)."""
    order = grouped(key)
    first = np.diff(key[order], prepend=key[order][:1] + np.uint64(1)) != 0
    stored = np.cumsum(kind[order] == _STORE)
    before = np.maximum.accumulate(np.where(first, stored - (kind[order] == _STORE), 0))
    followed = np.empty(len(key), bool)
    followed[order] = stored > before
    return followed
