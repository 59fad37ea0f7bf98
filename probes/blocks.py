"""KV cache blocks: every allocation, hit, hash assignment, eviction and release, as the block manager makes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kvtrace.events import BLOCK_EVENT, BlockOp, PinCause
from kvtrace.probes.engine import Engine, Pool
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import After, Args, Hook, Kwargs, Need, argument
from kvtrace.probes.owners import BLOCK, BLOCK_MAP, BLOCK_POOL

if TYPE_CHECKING:
    from kvtrace._native import Writer

_BLOCK = Need(BLOCK, "block_id ref_cnt is_null")


def hooks(engines: Engines) -> list[Hook]:
    """The hooks on `BlockPool` and on its map from hashes to blocks."""
    inserted, popped = _hash_changes(engines)
    allocated = _recorder_of(engines, BlockOp.allocate, _write_blocks(engines))

    def after_allocate(_: None, blocks: Any, args: Args, kwargs: Kwargs) -> None:
        allocated(args[0], blocks)

    writer = _native(engines, inserted, popped, after_allocate)
    if writer is None:
        return [*_pool_hooks(engines, after_allocate, _write_blocks(engines)), *_hash_hooks(engines, inserted, popped)]
    return [
        *_pool_hooks(engines, writer.after_allocate, writer.write_blocks),
        *_hash_hooks(engines, writer.after_insert, writer.after_pop),
    ]


def _native(engines: Engines, inserted: After, popped: After, allocated: After) -> Writer | None:
    """What writes the records of this module in compiled code, or None: see `kvtrace/native/blocks.c`."""
    packer = engines.recorder.packer(BLOCK_EVENT)
    if packer is None:
        return None
    from kvtrace._native import Writer as Native  # where there is a packer there is this

    ops = (int(op) for op in (BlockOp.cache, BlockOp.evict, BlockOp.allocate))
    return Native(packer, engines.maps, engines.pools, inserted, popped, allocated, *ops)


def _recorder_of(engines: Engines, op: BlockOp, write_blocks: Callable[..., None]) -> Callable[[Any, Any], None]:
    """Records what happened to blocks of a pool."""
    code, now = int(op), time.monotonic_ns

    def record(block_pool: Any, blocks: Iterable[Any]) -> None:
        pool = engines.pool(block_pool)
        if pool is None:
            return
        if pool.tier is not None:
            pool.tier.changed(op, blocks)
            return
        engine = pool.engine
        write_blocks(blocks, block_pool, now(), engine.acting_step, code, engine.owner, pool.index)

    return record


def _pool_hooks(engines: Engines, after_allocate: After, write_blocks: Callable[..., None]) -> list[Hook]:
    emit, now = engines.recorder.stream(BLOCK_EVENT), time.monotonic_ns
    hit = _recorder_of(engines, BlockOp.hit, write_blocks)
    freed = _recorder_of(engines, BlockOp.free, write_blocks)

    def after_reset(_: None, done: bool, args: Args, kwargs: Kwargs) -> None:
        pool = engines.pool(args[0]) if done else None
        if pool is not None:
            pool.cached = min(pool.cached, 0)
            engines.maps.clear()
            if pool.tier is not None:
                pool.tier.emptied()
                return
            emit(now(), pool.engine.acting_step, -1, BlockOp.reset, 0, 0, 0, 0, pool.index)

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


def _write_blocks(engines: Engines) -> Callable[..., None]:
    emit_columns = engines.recorder.columns(BLOCK_EVENT)

    def write_blocks(
        blocks: Iterable[Any], block_pool: Any, time_ns: int, step: int, op: int, request: int, pool: int
    ) -> None:
        ours = [block for block in blocks if not block.is_null]
        if ours and hasattr(ours[0], "pool"):
            ours = [block for block in ours if block.pool is None or block.pool is block_pool]
        ids, references = [block.block_id for block in ours], [block.ref_cnt for block in ours]
        emit_columns(len(ours), time_ns, step, ids, op, references, request, 0, 0, pool)

    return write_blocks


def _hash_changes(engines: Engines) -> tuple[After, After]:
    """What comes after an insertion into the map from hashes to blocks, and after a removal."""
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
