"""Prefix lookups and the allocations that use or refuse them."""

from __future__ import annotations

import time
from typing import Any

from kvtrace.events import PREFIX_LOOKUP
from kvtrace.probes.engine import Engine, Engines
from kvtrace.probes.hooks import Hook

_MANAGER = "vllm.v1.core.kv_cache_manager:KVCacheManager"
_COORDINATOR = "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator"


class Lookups:
    """Holds a lookup until the allocation after it tells what became of it."""

    def __init__(self, engines: Engines) -> None:
        self._emit = engines.recorder.stream(PREFIX_LOOKUP)

    def settle(self, engine: Engine, admitted: bool, external_tokens: int = -1) -> None:
        """Record the pending lookup, if there is one."""
        if engine.lookup is None:
            return
        moment, request, hit_tokens = engine.lookup
        engine.lookup = None
        live = engine.request(request.request_id)
        queried = request.num_tokens
        block_size = engine.block_size or 1
        missing = hit_tokens // block_size if hit_tokens // block_size < (queried - 1) // block_size else -1
        enabled = engine.scheduler.kv_cache_manager.enable_caching and not getattr(
            request, "skip_reading_prefix_cache", False
        )
        self._emit(
            moment,
            engine.step,
            live.number,
            queried,
            hit_tokens,
            external_tokens,
            missing,
            admitted,
            live.lookups,
            live.preempted,
            bool(enabled),
        )
        live.lookups += 1
        if admitted:
            live.local_hit, live.external_hit = hit_tokens, max(external_tokens, 0)


def hooks(engines: Engines, lookups: Lookups) -> list[Hook]:
    """The hooks on `KVCacheManager`'s lookup, allocation and release, and on the coordinator's sizing."""
    managers = engines.by_manager
    now = time.monotonic_ns

    def after_lookup(_: None, found: tuple[Any, ...], manager: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        engine = managers.get(id(manager))
        if engine is None:
            return
        if engine.lookup is not None and engine.lookup[1] is not request:
            lookups.settle(engine, admitted=False)
        engine.lookup = (now(), request, found[1])

    def before_owned(manager: Any, request: Any, *args: Any, **kwargs: Any) -> tuple[Engine, int] | None:
        engine = managers.get(id(manager))
        if engine is None:
            return None
        owner = engine.owner
        engine.owner = engine.request(request.request_id).number
        return engine, owner

    def after_owned(state: tuple[Engine, int] | None, *args: Any, **kwargs: Any) -> None:
        if state is not None:
            engine, engine.owner = state

    def after_allocate(
        state: tuple[Engine, int] | None,
        blocks: Any,
        manager: Any,
        request: Any,
        num_new_tokens: int = 0,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if state is None:
            return
        engine, engine.owner = state
        if new_computed_blocks is None:  # a running request grows: no lookup belongs to it
            return
        if engine.lookup is not None and engine.lookup[1] is request:
            external = num_external_computed_tokens if engine.has_connector else -1
            lookups.settle(engine, admitted=blocks is not None, external_tokens=external)
        if blocks is None:
            engine.refused = (request.request_id, engine.need_blocks, engine.block_pool.get_num_free_blocks())

    def after_sizing(_: None, need: int, *args: Any, **kwargs: Any) -> None:
        for engine in managers.values():
            engine.need_blocks = need

    return [
        Hook(f"{_MANAGER}.get_computed_blocks", "prefix lookups", after=after_lookup),
        Hook(
            f"{_MANAGER}.allocate_slots",
            "which request blocks were allocated for, external hits, refusals for lack of KV",
            before=before_owned,
            after=after_allocate,
        ),
        Hook(f"{_MANAGER}.free", "which request blocks were released by", before=before_owned, after=after_owned),
        Hook(f"{_COORDINATOR}.get_num_blocks_to_allocate", "blocks a refused request asked for", after=after_sizing),
    ]
