"""KV cache blocks: every allocation, hit, hash assignment, eviction and release, as the block manager makes it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from kvtrace.capture._native import Writer
from kvtrace.events import BLOCK_EVENT, PinCause
from kvtrace.probes.engine import Engine, Pool
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Args, Argument, Hook, Kwargs, Need
from kvtrace.probes.vllm_symbols import BLOCK, BLOCK_MAP, BLOCK_POOL
from kvtrace.probes.vllm_types import Block

_BLOCK = Need(BLOCK, "block_id ref_cnt is_null")


def hooks(engines: Engines) -> list[Hook]:
    """The hooks on `BlockPool` and on its map from hashes to blocks."""
    packer = engines.recorder.packer(BLOCK_EVENT)
    writer = Writer(packer, engines.maps, engines.pools, partial(_pool_of, engines), engines.pool, _touched, _freed)
    needs = (_BLOCK, Need(BLOCK_POOL, "cached_block_hash_to_block"))
    uncounted = engines.off(Engine.without_hashes)
    return [
        Hook(f"{BLOCK_POOL}.get_new_blocks", "block allocations", after=writer.after_allocate, needs=(_BLOCK,)),
        Hook(
            f"{BLOCK_POOL}.touch",
            "references by prefix-cache hits",
            after=writer.after_touch,
            takes=(Argument(1, "blocks"),),
            needs=(_BLOCK,),
        ),
        Hook(
            f"{BLOCK_POOL}.free_blocks",
            "block releases",
            after=writer.after_free,
            arguments=writer.listed,
            takes=(Argument(1, "ordered_blocks"),),
            needs=(_BLOCK,),
            off=engines.off(lambda engine: engine.pins.unfollow(PinCause.connector)),
        ),
        Hook(
            f"{BLOCK_POOL}.reset_prefix_cache",
            "prefix cache resets",
            after=partial(_after_reset, engines),
            catches_up=True,
            off=uncounted,
        ),
        Hook(
            f"{BLOCK_MAP}.insert",
            "blocks becoming findable by hash",
            after=writer.after_insert,
            takes=(Argument(1, "key"), Argument(2, "block")),
            needs=needs,
            off=uncounted,
        ),
        Hook(
            f"{BLOCK_MAP}.pop",
            "evictions",
            after=writer.after_pop,
            takes=(Argument(1, "key"),),
            needs=needs,
            off=uncounted,
        ),
    ]


def _touched(pool: Pool, blocks: Iterable[Block]) -> None:
    """Somebody else than a request took references on blocks."""
    pool.engine.pins.touched(blocks)


def _freed(pool: Pool, blocks: Iterable[Block]) -> None:
    """Somebody else than a request released references on blocks."""
    pool.engine.pins.freed(blocks)


def _after_reset(engines: Engines, _: None, done: bool, args: Args, kwargs: Kwargs) -> None:
    """Record that the prefix cache was emptied."""
    pool = engines.pool(args[0]) if done else None
    if pool is None:
        return
    pool.cached = min(pool.cached, 0)
    engines.maps.clear()
    if pool.tier is not None:
        pool.tier.emptied()
    else:
        engines.record_reset(pool.engine.acting_step, pool.index)


def _pool_of(engines: Engines, hash_map: object) -> Pool | None:
    """The pool a map from hashes to blocks belongs to; the map is not known yet."""
    for pool in list(engines.pools.values()):
        if pool.block_pool.cached_block_hash_to_block is hash_map:
            engines.maps[id(hash_map)] = (hash_map, pool)
            return pool
    return None
