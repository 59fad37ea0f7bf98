"""KV cache blocks: every allocation, hit, hash assignment, eviction and release, as the block manager makes it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kvtrace.events import BLOCK_EVENT, BlockOp
from kvtrace.probes.engine import Engines, Pool
from kvtrace.probes.hooks import Hook

_POOL = "vllm.v1.core.block_pool:BlockPool"
_MAP = "vllm.v1.core.block_pool:BlockHashToBlockMap"


def hooks(engines: Engines) -> list[Hook]:
    """The hooks on `BlockPool` and on its map from hashes to blocks."""
    emit = engines.recorder.stream(BLOCK_EVENT)
    now = time.monotonic_ns
    maps: dict[int, tuple[Any, Pool]] = {}  # the map is kept, so that its id() cannot be given to another

    def pool_of(hash_map: Any) -> Pool | None:
        known = maps.get(id(hash_map))
        if known is not None:
            return known[1]
        for pool in engines.pools.values():
            if pool.block_pool.cached_block_hash_to_block is hash_map:
                maps[id(hash_map)] = (hash_map, pool)
                return pool
        return None

    def changed(op: BlockOp) -> Callable[..., None]:
        code = int(op)

        def after(_: None, result: Any, block_pool: Any, blocks: Any, *args: Any, **kwargs: Any) -> None:
            pool = engines.pool(block_pool)
            if pool is None:
                return
            engine, index, moment = pool.engine, pool.index, now()
            step, owner = engine.acting_step, engine.owner
            for block in result if result is not None else blocks:
                if not block.is_null and getattr(block, "pool", None) in (None, block_pool):
                    emit(moment, step, block.block_id, code, block.ref_cnt, owner, 0, 0, index)

        return after

    def after_insert(_: None, __: None, hash_map: Any, key: bytes, block: Any, *args: Any, **kwargs: Any) -> None:
        pool = pool_of(hash_map)
        if pool is not None:
            pool.cached += 1
            hash_event(pool, BlockOp.cache, key, block)

    def after_pop(_: None, block: Any, hash_map: Any, key: bytes, *args: Any, **kwargs: Any) -> None:
        pool = pool_of(hash_map) if block is not None else None
        if pool is not None:
            pool.cached -= 1
            hash_event(pool, BlockOp.evict, key, block)

    def hash_event(pool: Pool, op: BlockOp, key: bytes, block: Any) -> None:
        engine = pool.engine
        low_hash, group = int.from_bytes(key[-12:-4], "big"), key[-1]
        emit(now(), engine.acting_step, block.block_id, op, block.ref_cnt, engine.owner, low_hash, group, pool.index)

    def after_reset(_: None, done: bool, block_pool: Any, *args: Any, **kwargs: Any) -> None:
        pool = engines.pool(block_pool) if done else None
        if pool is not None:
            pool.cached = 0
            maps.clear()
            emit(now(), pool.engine.acting_step, -1, BlockOp.reset, 0, 0, 0, 0, pool.index)

    def listed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`free_blocks` may be given an iterator that can be walked only once."""
        if len(args) > 1:
            return (args[0], list(args[1]), *args[2:]), kwargs
        return args, {name: list(value) if name == "ordered_blocks" else value for name, value in kwargs.items()}

    def after_free(_: None, __: None, block_pool: Any, ordered_blocks: Any, *args: Any, **kwargs: Any) -> None:
        released(None, ordered_blocks, block_pool, ordered_blocks)

    released = changed(BlockOp.free)
    return [
        Hook(f"{_POOL}.get_new_blocks", "block allocations", after=changed(BlockOp.allocate)),
        Hook(f"{_POOL}.touch", "references by prefix-cache hits", after=changed(BlockOp.hit)),
        Hook(f"{_POOL}.free_blocks", "block releases", after=after_free, arguments=listed),
        Hook(f"{_POOL}.reset_prefix_cache", "prefix cache resets", after=after_reset),
        Hook(f"{_MAP}.insert", "blocks becoming findable by hash", after=after_insert),
        Hook(f"{_MAP}.pop", "evictions", after=after_pop),
    ]
