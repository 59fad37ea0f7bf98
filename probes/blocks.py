"""KV cache blocks: every allocation, hit, hash assignment, eviction and release, as the block manager makes it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kvtrace.events import BLOCK_EVENT, BlockOp, PinCause
from kvtrace.probes.engine import Engine, Pool
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import After, Args, Hook, Kwargs, Need, argument
from kvtrace.probes.vllm_symbols import BLOCK, BLOCK_MAP, BLOCK_POOL

if TYPE_CHECKING:
    from kvtrace.capture._native import Writer

_BLOCK = Need(BLOCK, "block_id ref_cnt is_null")


def hooks(engines: Engines) -> list[Hook]:
    """The hooks on `BlockPool` and on its map from hashes to blocks."""
    pools, maps = _PoolHooks(engines), _hash_changes(engines)
    writer = _native(engines, pools, maps)
    if writer is None:
        return [*_pool_hooks(engines, pools, pools.after_reset), *_hash_hooks(engines, *maps)]
    return [
        *_pool_hooks(engines, writer, pools.after_reset),
        *_hash_hooks(engines, writer.after_insert, writer.after_pop),
    ]


def _native(engines: Engines, pools: _PoolHooks, maps: tuple[After, After]) -> Writer | None:
    """Return the compiled part that does most of it, or None: see `kvtrace/capture/native/blocks.c`."""
    packer = engines.recorder.packer(BLOCK_EVENT)
    if packer is None:
        return None
    from kvtrace.capture._native import Writer as Native  # where there is a packer there is this

    slow_ways = *maps, pools.after_allocate, pools.after_touch, pools.after_free, pools.listed
    ops = (int(op) for op in (BlockOp.cache, BlockOp.evict, BlockOp.allocate, BlockOp.hit, BlockOp.free))
    return Native(packer, engines.maps, engines.pools, *slow_ways, *ops)


class _PoolHooks:
    """Hooks on block pools."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._emit = engines.recorder.stream(BLOCK_EVENT)
        self._emit_columns = engines.recorder.columns(BLOCK_EVENT)

    def after_allocate(self, _: None, blocks: Iterable[Any], args: Args, kwargs: Kwargs) -> None:
        """Of `get_new_blocks`."""
        self._handed(args[0], blocks, BlockOp.allocate)

    def after_touch(self, _: None, __: None, args: Args, kwargs: Kwargs) -> None:
        """Of `touch`."""
        blocks = argument(args, kwargs, 1, "blocks")
        self._handed(args[0], blocks, BlockOp.hit)
        if (pins := self._engines.holding(args[0])) is not None:
            pins.touched(blocks)

    def listed(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """`free_blocks` may be given an iterator that can be walked only once."""
        return (args[0], list(argument(args, kwargs, 1, "ordered_blocks"))), {}

    def after_free(self, _: None, __: None, args: Args, kwargs: Kwargs) -> None:
        """Of `free_blocks`, with the list."""
        self._handed(args[0], args[1], BlockOp.free)
        if (pins := self._engines.holding(args[0])) is not None:
            pins.freed(args[1])

    def after_reset(self, _: None, done: bool, args: Args, kwargs: Kwargs) -> None:
        """Of `reset_prefix_cache`."""
        pool = self._engines.pool(args[0]) if done else None
        if pool is not None:
            pool.cached = min(pool.cached, 0)
            self._engines.maps.clear()
            if pool.tier is not None:
                pool.tier.emptied()
                return
            now, step = time.monotonic_ns(), pool.engine.acting_step
            self._emit(now, step, -1, BlockOp.reset, 0, 0, 0, 0, pool.index)

    def _handed(self, block_pool: Any, blocks: Iterable[Any], op: BlockOp) -> None:
        """Record what happened to blocks of a pool."""
        pool = self._engines.pool(block_pool)
        if pool is None:
            return
        if pool.tier is not None:
            pool.tier.changed(op, blocks)
            return
        ours = [block for block in blocks if not block.is_null]
        if ours and hasattr(ours[0], "pool"):
            ours = [block for block in ours if block.pool is None or block.pool is block_pool]
        ids, references = [block.block_id for block in ours], [block.ref_cnt for block in ours]
        now, engine = time.monotonic_ns(), pool.engine
        self._emit_columns(len(ours), now, engine.acting_step, ids, op, references, engine.owner, 0, 0, pool.index)


def _pool_hooks(engines: Engines, does: _PoolHooks | Writer, after_reset: After) -> list[Hook]:
    return [
        Hook(f"{BLOCK_POOL}.get_new_blocks", "block allocations", after=does.after_allocate, needs=(_BLOCK,)),
        Hook(f"{BLOCK_POOL}.touch", "references by prefix-cache hits", after=does.after_touch, needs=(_BLOCK,)),
        Hook(
            f"{BLOCK_POOL}.free_blocks",
            "block releases",
            after=does.after_free,
            arguments=does.listed,
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


def _hash_changes(engines: Engines) -> tuple[After, After]:
    """Return the hooks that run after an insertion into the map from hashes to blocks, and after a removal."""
    emit = engines.recorder.stream(BLOCK_EVENT)
    now = time.monotonic_ns

    def after_insert(_: None, __: None, args: Args, kwargs: Kwargs) -> None:
        pool = _pool_of(engines, args[0])
        if pool is not None:
            pool.cached += 1
            changed(pool, BlockOp.cache, argument(args, kwargs, 1, "key"), argument(args, kwargs, 2, "block"))

    def after_pop(_: None, block: Any, args: Args, kwargs: Kwargs) -> None:
        pool = _pool_of(engines, args[0]) if block is not None else None
        if pool is not None:
            pool.cached -= 1
            pool.evicted += 1
            changed(pool, BlockOp.evict, argument(args, kwargs, 1, "key"), block)

    def changed(pool: Pool, op: BlockOp, key: bytes, block: Any) -> None:
        if pool.tier is not None:
            pool.tier.hashed(op, key, block)
            return
        engine = pool.engine
        low_hash, group = int.from_bytes(key[-12:-4], "big"), key[-1]
        emit(now(), engine.acting_step, block.block_id, op, block.ref_cnt, engine.owner, low_hash, group, pool.index)

    return after_insert, after_pop


def _hash_hooks(engines: Engines, inserted: After, popped: After) -> list[Hook]:
    needs = (_BLOCK, Need(BLOCK_POOL, "cached_block_hash_to_block"))
    uncounted = engines.off(Engine.without_hashes)
    return [
        Hook(f"{BLOCK_MAP}.insert", "blocks becoming findable by hash", after=inserted, needs=needs, off=uncounted),
        Hook(f"{BLOCK_MAP}.pop", "evictions", after=popped, needs=needs, off=uncounted),
    ]


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
