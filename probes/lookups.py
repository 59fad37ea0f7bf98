"""Prefix lookups and the allocations that use or refuse them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from kvtrace.capture._native import Owner
from kvtrace.events import PREFIX_LOOKUP, REFUSAL_GROUP, PinCause
from kvtrace.probes.block_hashes import CHAIN_NEEDS, Chains
from kvtrace.probes.engine import Engine, Lookup
from kvtrace.probes.engines import Engines
from kvtrace.probes.group_lookups import EACH, EACH_LOST, FOR_CONNECTOR, GROUP_NEEDS
from kvtrace.probes.hooks import Args, Argument, Hook, Kwargs, Need, argument
from kvtrace.probes.vllm_symbols import (
    BLOCK_POOL,
    COORDINATOR,
    GROUP_MANAGER,
    HYBRID_COORDINATOR,
    KV_CACHE_MANAGER,
    REQUEST,
)
from kvtrace.probes.vllm_types import KVCacheManager, Request

_SIZING = "get_num_blocks_to_allocate"
_SIZED = "how many blocks a refused request asked for"
_GROUPS = "single_type_managers"
_SIZED_GROUPS = "how many blocks a refused request asked for of each KV cache group"
_SKIPS = "that a request does not want the prefix cache"
_ALLOCATION_NEEDS = (
    Need(REQUEST, "request_id"),
    Need(KV_CACHE_MANAGER, "coordinator"),
    Need(BLOCK_POOL, "get_num_free_blocks num_gpu_blocks"),
    Need(COORDINATOR, _SIZING, _SIZED),
    Need(COORDINATOR, _GROUPS, _SIZED_GROUPS),
    Need(GROUP_MANAGER, _SIZING, _SIZED_GROUPS),
    Need(f"{KV_CACHE_MANAGER}.allocate_slots", "delay_cache_blocks", "pins of blocks that a connector is to fill"),
    Need(REQUEST, "skip_reading_prefix_cache", _SKIPS),
    *CHAIN_NEEDS,
)


def _note_sizing(engine: Engine, manager: KVCacheManager) -> None:
    """Note how many blocks an admission asks for.

    Allocations of running requests are sized by the same method every step; they are left alone, so the method is
    covered on the one object and for the one call.
    """
    coordinator = manager.coordinator
    engine.need_blocks, engine.group_needs = -1, []
    method = getattr(type(coordinator), _SIZING, None)
    if method is None:
        engine.optional.tell(coordinator, _SIZING, _SIZED)
        return
    size = method.__get__(coordinator)
    groups, answers = engine.group_lookups, engine.lookup[4] if engine.lookup is not None else None

    def sized(*args: Any, **kwargs: Any) -> int:
        nonlocal answers
        engine.need_blocks = need = size(*args, **kwargs)
        if groups is not None and answers is not None and need <= engine.block_pool.get_num_free_blocks():
            groups.complete(engine, answers)
            answers = None
        return need  # type: ignore[no-any-return]

    setattr(coordinator, _SIZING, sized)
    _note_group_sizes(engine, engine.optional.read(coordinator, _GROUPS, _SIZED_GROUPS, ()))


def _note_group_sizes(engine: Engine, groups: Sequence[Any]) -> None:
    """Note what an admission asks for of each KV cache group, where there are several."""
    if len(groups) < 2:
        return
    needs = [0] * len(groups)
    for number, group in enumerate(groups):
        method = getattr(type(group), _SIZING, None)
        if method is None:
            engine.optional.tell(group, _SIZING, _SIZED_GROUPS)
            return
        setattr(group, _SIZING, _sized(method.__get__(group), needs, number))
    engine.group_needs = needs


def _sized(size: Callable[..., int], needs: list[int], number: int) -> Callable[..., int]:
    def sized(*args: Any, **kwargs: Any) -> int:
        needs[number] = need = size(*args, **kwargs)
        return need

    return sized


def _uncover(manager: KVCacheManager) -> None:
    """Take the covers of both functions above away."""
    coordinator = manager.coordinator
    for covered in (coordinator, *getattr(coordinator, _GROUPS, ())):
        vars(covered).pop(_SIZING, None)


def _cap(args: Args, kwargs: Kwargs) -> int:
    cap = argument(args, kwargs, 2, "max_cache_hit_length", None)
    return -1 if cap is None else int(cap)


def _without_owner(engine: Engine) -> None:
    engine.owner = 0


def _without_allocations(engine: Engine) -> None:
    engine.without_lookups()
    _uncover(engine.scheduler.kv_cache_manager)


Settled = tuple[Engine, Lookup, bool, int, int | None]
"""A lookup and what became of it: whether its request was admitted, tokens of a connector, tokens taken of the hit."""


class Lookups:
    """Holds a lookup until the allocation after it tells what became of it."""

    def __init__(self, engines: Engines) -> None:
        self._emit = engines.recorder.stream(PREFIX_LOOKUP)
        self._chains = Chains(engines.recorder)

    def settle(
        self, engine: Engine, admitted: bool, external_tokens: int = -1, local_tokens: int | None = None
    ) -> Settled | None:
        """Say what became of the pending lookup, for `record`; None if there is none.

        Args:
            engine: The engine.
            admitted: Whether its request was admitted.
            external_tokens: Tokens that a connector supplies; -1 without one.
            local_tokens: Tokens that the scheduler took of the hit; all of it by default.
        """
        lookup, engine.lookup = engine.lookup, None
        return None if lookup is None else (engine, lookup, admitted, external_tokens, local_tokens)

    def record(self, settled: Settled) -> None:
        """Record a lookup, in the step that it belongs to, and of an admitted request its chain of hashes."""
        engine, (moment, request, hit_tokens, cap_tokens, answers), admitted, external_tokens, local_tokens = settled
        if admitted and local_tokens is not None:
            hit_tokens = local_tokens
        live = engine.request(request.request_id)
        queried = request.num_tokens
        missing, block_size = -1, engine.block_size
        if block_size and hit_tokens // block_size < (queried - max(engine.hash_lookahead, 1)) // block_size:
            missing = hit_tokens // block_size
        caching = engine.scheduler.kv_cache_manager.enable_caching
        enabled = caching and not engine.optional.read(request, "skip_reading_prefix_cache", _SKIPS)
        self._emit(
            time_ns=moment,
            step=engine.step,
            request=live.number,
            queried_tokens=queried,
            local_hit_tokens=hit_tokens,
            external_hit_tokens=external_tokens,
            first_missing_block=missing,
            admitted=admitted,
            repeat=live.lookups,
            resumed=live.preempted,
            enabled=bool(enabled),
            cap_tokens=cap_tokens,
        )
        live.lookups += 1
        if admitted:
            if answers is not None and engine.group_lookups is not None:
                engine.group_lookups.record(engine, moment, live.number, answers)
            if enabled:
                self._chains.record(engine, live.number, request, hit_tokens)
            live.local_hit, live.external_hit = hit_tokens, max(external_tokens, 0)


def _kept_free(manager: KVCacheManager, request: Request, kwargs: Kwargs) -> int:
    """Blocks below vLLM's watermark, which a request that waits may not take while others run."""
    watermark = getattr(manager, "watermark_blocks", 0)
    applies = watermark and request.status.name in ("WAITING", "PREEMPTED") and kwargs.get("has_scheduled_reqs", True)
    return int(watermark) if applies else 0


class _Allocations:
    """Hooks around lookups, and around allocations and releases of requests' blocks."""

    def __init__(self, engines: Engines, lookups: Lookups) -> None:
        self._managers, self._lookups = engines.by_manager, lookups
        self._emit = engines.recorder.stream(REFUSAL_GROUP)

    def before_connector_lookup(self, args: Args, kwargs: Kwargs) -> object:
        """Note which lookup is held: vLLM may look up inside by `get_computed_blocks`, or by itself."""
        engine = self._managers.get(id(args[0]))
        return None if engine is None else engine.lookup

    def after_connector_lookup(
        self, held: object, found: tuple[object, int, int, bool], args: Args, kwargs: Kwargs
    ) -> Settled | None:
        """Hold a lookup for a connector, which may supply what some KV cache groups lack."""
        engine = self._managers.get(id(args[0]))
        if engine is None or engine.lookup is not held:
            return None
        return self._hold(engine, found[1], args, kwargs)

    def after_lookup(self, _: None, found: tuple[object, int], args: Args, kwargs: Kwargs) -> Settled | None:
        """Hold a lookup until it is clear what becomes of it."""
        engine = self._managers.get(id(args[0]))
        return None if engine is None else self._hold(engine, found[1], args, kwargs)

    def _hold(self, engine: Engine, hit_tokens: int, args: Args, kwargs: Kwargs) -> Settled | None:
        """Hold a lookup. Of another request's, which was held, nothing came."""
        request = argument(args, kwargs, 1, "request")
        if not engine.follows_lookups:
            return None
        groups = engine.group_lookups
        answers = None if groups is None else groups.take()
        before = None
        if engine.lookup is not None and engine.lookup[1] is not request:
            before = self._lookups.settle(engine, admitted=False)
        cap = _cap(args, kwargs) if len(args) > 2 or kwargs else -1
        engine.lookup = (time.monotonic_ns(), request, hit_tokens, cap, answers)
        return before

    def settled(self, engine: Engine, blocks: object | None, args: Args, kwargs: Kwargs) -> Settled | None:
        """Say what became of the lookup before an allocation that is over; record a refusal for lack of blocks."""
        _uncover(args[0])
        request, lookup = argument(args, kwargs, 1, "request"), None
        if engine.lookup is not None and engine.lookup[1] is request:
            external = argument(args, kwargs, 6, "num_external_computed_tokens", 0) if engine.has_connector else -1
            local = argument(args, kwargs, 3, "num_new_computed_tokens", None)
            lookup = self._lookups.settle(engine, blocks is not None, external, local)
        if blocks is not None and kwargs.get("delay_cache_blocks"):  # it waits for a connector to fill them
            engine.pins.hold_request(PinCause.async_load, request)
        if blocks is None:
            free = engine.block_pool.get_num_free_blocks()
            kept = _kept_free(args[0], request, kwargs)
            if engine.need_blocks + kept <= free:
                kept += kwargs.get("reserved_blocks", 0)
            engine.refused = (request.request_id, engine.need_blocks, free, kept)
            for group, need in enumerate(engine.group_needs):
                number, told = engine.request(request.request_id).number, need <= engine.block_pool.num_gpu_blocks
                self._emit(step=engine.step, request=number, kv_group=group, need_blocks=need if told else -1)
        return lookup

    def before_free(self, args: Args, kwargs: Kwargs) -> Engine | None:
        """Release blocks for a request until `after_free`."""
        engine = self._managers.get(id(args[0]))
        if engine is not None:
            engine.acts_for(argument(args, kwargs, 1, "request"))
        return engine

    def after_free(self, engine: Engine | None, _: object, args: Args, kwargs: Kwargs) -> None:
        """Blocks change hands for nobody again."""
        if engine is not None:
            engine.owner = 0


def hooks(engines: Engines, lookups: Lookups) -> list[Hook]:
    """The hooks on `KVCacheManager`'s lookup, allocation and release, and on the coordinator's sizing."""
    allocations = _Allocations(engines, lookups)
    owner = Owner(engines.by_manager, _note_sizing, Engine.acts_for, allocations.settled)
    return [
        Hook(
            f"{KV_CACHE_MANAGER}.get_computed_blocks",
            "prefix lookups",
            after=allocations.after_lookup,
            later=lookups.record,
            off=engines.off(Engine.without_lookups),
            needs=(
                Need(REQUEST, "request_id num_tokens"),
                Need(KV_CACHE_MANAGER, "enable_caching"),
                *GROUP_NEEDS,
            ),
        ),
        Hook(
            f"{KV_CACHE_MANAGER}.{FOR_CONNECTOR}",
            "prefix lookups of engines whose connector supplies states (NIXL, MoRIIO)",
            before=allocations.before_connector_lookup,
            after=allocations.after_connector_lookup,
            later=lookups.record,
            off=engines.off(Engine.without_lookups),
            needs=(Need(HYBRID_COORDINATOR, EACH, EACH_LOST),),
            since="0.27",
        ),
        Hook(
            f"{KV_CACHE_MANAGER}.allocate_slots",
            "which request blocks were allocated for, external hits, refusals for lack of KV",
            before=owner.before,
            after=owner.after,
            later=lookups.record,
            takes=(
                Argument(1, "request"),
                Argument(3, "num_new_computed_tokens", optional=True),
                Argument(4, "new_computed_blocks"),
                Argument(6, "num_external_computed_tokens", optional=True),
            ),
            off=engines.off(_without_allocations),
            needs=_ALLOCATION_NEEDS,
        ),
        Hook(
            f"{KV_CACHE_MANAGER}.free",
            "which request blocks were released by",
            before=allocations.before_free,
            after=allocations.after_free,
            off=engines.off(_without_owner),
            needs=(Need(REQUEST, "request_id"),),
        ),
    ]
