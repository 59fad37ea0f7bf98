"""KV cache blocks: every allocation, hit, hash assignment, eviction and release, as the block manager makes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from kvtrace.events import BLOCK_EVENT, BlockOp, PinCause
from kvtrace.probes.engine import Engine, Engines, Pool
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, argument
from kvtrace.probes.owners import BLOCK, BLOCK_MAP, BLOCK_POOL

_ROW = len(BLOCK_EVENT.fields) + 1
_BLOCK_ID, _REFERENCES = (
    [field.name for field in BLOCK_EVENT.fields].index(name) for name in ("block_id", "ref_count")
)
_BLOCK = Need(BLOCK, "block_id ref_cnt is_null")


def hooks(engines: Engines) -> list[Hook]:
    """The hooks on `BlockPool` and on its map from hashes to blocks."""
    return [*_pool_hooks(engines), *_hash_hooks(engines)]


def _pool_hooks(engines: Engines) -> list[Hook]:
    emit, emit_rows = engines.recorder.stream(BLOCK_EVENT), engines.recorder.rows_stream(BLOCK_EVENT)
    now = time.monotonic_ns

    def recorder_of(op: BlockOp) -> Callable[[Any, Iterable[Any]], None]:
        code = int(op)

        def record(block_pool: Any, blocks: Iterable[Any]) -> None:
            pool = engines.pool(block_pool)
            if pool is None:
                return
            if pool.tier is not None:
                pool.tier.changed(op, blocks)
                return
            engine, index, moment = pool.engine, pool.index, now()
            step, owner = engine.acting_step, engine.owner()
            ours = [block for block in blocks if not block.is_null]
            if ours and hasattr(ours[0], "pool"):
                ours = [block for block in ours if block.pool is None or block.pool is block_pool]
            if ours:
                rows = [moment, step, 0, code, 0, owner, 0, 0, index, 1] * len(ours)
                rows[_BLOCK_ID::_ROW] = [block.block_id for block in ours]
                rows[_REFERENCES::_ROW] = [block.ref_cnt for block in ours]
                emit_rows(rows, len(ours))

        return record

    def after_reset(_: None, done: bool, args: Args, kwargs: Kwargs) -> None:
        pool = engines.pool(args[0]) if done else None
        if pool is not None:
            pool.cached = min(pool.cached, 0)
            engines.maps.clear()
            if pool.tier is not None:
                pool.tier.emptied()
                return
            emit(now(), pool.engine.acting_step, -1, BlockOp.reset, 0, 0, 0, 0, pool.index)

    def after_allocate(_: None, blocks: Any, args: Args, kwargs: Kwargs) -> None:
        allocated(args[0], blocks)

    def after_touch(_: None, __: None, args: Args, kwargs: Kwargs) -> None:
        blocks = argument(args, kwargs, 1, "blocks")
        hit(args[0], blocks)
        if (pins := engines.holding(args[0])) is not None:
            pins.touched(blocks)

    def listed(args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """`free_blocks` may be given an iterator that can be walked only once."""
        return (args[0], list(argument(args, kwargs, 1, "ordered_blocks"))), {}

    def after_free(_: None, __: None, args: Args, kwargs: Kwargs) -> None:
        freed(args[0], args[1])
        if (pins := engines.holding(args[0])) is not None:
            pins.freed(args[1])

    allocated, hit, freed = recorder_of(BlockOp.allocate), recorder_of(BlockOp.hit), recorder_of(BlockOp.free)
    return [
        Hook(f"{BLOCK_POOL}.get_new_blocks", "block allocations", after=after_allocate, needs=(_BLOCK,)),
        Hook(f"{BLOCK_POOL}.touch", "references by prefix-cache hits", after=after_touch, needs=(_BLOCK,)),
        Hook(
            f"{BLOCK_POOL}.free_blocks",
            "block releases",
            after=after_free,
            arguments=listed,
            needs=(_BLOCK,),
            off=engines.off(lambda engine: engine.pins.unfollow(PinCause.connector)),
        ),
        Hook(
            f"{BLOCK_POOL}.reset_prefix_cache",
            "prefix cache resets",
            after=after_reset,
            off=engines.off(Engine.without_hashes),
        ),
    ]


def _hash_hooks(engines: Engines) -> list[Hook]:
    emit = engines.recorder.stream(BLOCK_EVENT)
    now = time.monotonic_ns
    caches, evicts = BlockOp.cache, BlockOp.evict

    # Called for every block that is cached or evicted, so every tenth of a microsecond counts.
    def after_insert(_: None, __: None, args: Args, kwargs: Kwargs) -> None:
        pool = _pool_of(engines, args[0])
        if pool is not None:
            pool.cached += 1
            key, block = args[1:] if len(args) == 3 else _insertion(args, kwargs)
            hash_event(pool, caches, key, block)

    def after_pop(_: None, block: Any, args: Args, kwargs: Kwargs) -> None:
        pool = _pool_of(engines, args[0]) if block is not None else None
        if pool is not None:
            pool.cached -= 1
            pool.evicted += 1
            hash_event(pool, evicts, argument(args, kwargs, 1, "key"), block)

    def hash_event(pool: Pool, op: BlockOp, key: bytes, block: Any) -> None:
        if pool.tier is not None:
            pool.tier.hashed(op, key, block)
            return
        engine = pool.engine
        low_hash, group = int.from_bytes(key[-12:-4], "big"), key[-1]
        emit(now(), engine.acting_step, block.block_id, op, block.ref_cnt, engine.owner(), low_hash, group, pool.index)

    needs = (_BLOCK, Need(BLOCK_POOL, "cached_block_hash_to_block"))
    uncounted = engines.off(Engine.without_hashes)
    return [
        Hook(f"{BLOCK_MAP}.insert", "blocks becoming findable by hash", after=after_insert, needs=needs, off=uncounted),
        Hook(f"{BLOCK_MAP}.pop", "evictions", after=after_pop, needs=needs, off=uncounted),
    ]


def _insertion(args: Args, kwargs: Kwargs) -> tuple[Any, Any]:
    return argument(args, kwargs, 1, "key"), argument(args, kwargs, 2, "block")


def _pool_of(engines: Engines, hash_map: Any) -> Pool | None:
    """The pool a map from hashes to blocks belongs to."""
    known = engines.maps.get(id(hash_map))
    if known is not None:
        return known[1]
    for pool in list(engines.pools.values()):
        if pool.block_pool.cached_block_hash_to_block is hash_map:
            engines.maps[id(hash_map)] = (hash_map, pool)
            return pool
    return None
