"""Pins of a scheduler with a time to live, found by its methods.

vLLM has none. Schedulers that do (kvtrace's own `kvtrace.lab.ttl_pin`, and forks) have methods `pin_request(request,
seconds)` and `unpin_request(request, ...)`. Blocks they take references on inside `pin_request` are the pin's; if they
take none, the request's whole block table is.
"""

from __future__ import annotations

import time

from kvtrace.events import PinCause, PinEnd
from kvtrace.probes.engine import Engine
from kvtrace.probes.hooks import Args, Hook, Kwargs, Patches
from kvtrace.probes.optional_attributes import Followed
from kvtrace.probes.pins import Holder, block_ids

_REASONS = {reason.name: reason for reason in PinEnd}


def follow(engine: Engine, scheduler: object, patches: Patches) -> None:
    """Record the TTL pins of a scheduler that has them; others are left alone."""
    if not any(callable(getattr(scheduler, name, None)) for name in ("pin_request", "unpin_request")):
        return
    until: Followed[str, int] = Followed()  # by request: when its pin's time is over
    where = f"{type(scheduler).__module__}:{type(scheduler).__qualname__}"
    pins = engine.pins

    def before_pin(args: Args, kwargs: Kwargs) -> tuple[Holder | None, Holder]:
        mine = Holder(0, PinEnd.released, [])
        before, engine.holder = engine.holder, mine
        return before, mine

    def after_pin(state: tuple[Holder | None, Holder], _: object, args: Args, kwargs: Kwargs) -> None:
        engine.holder, mine = state
        request_id = _request_id(args, kwargs)
        ttl_ns = _ttl_ns(args, kwargs)
        blocks = mine.found or block_ids(engine, request_id)
        pins.end(PinCause.ttl, request_id, PinEnd.released)  # pinned again: the new time counts
        pins.start(PinCause.ttl, request_id, engine.number(request_id), blocks, ttl_ns)
        until[request_id] = time.monotonic_ns() + ttl_ns if ttl_ns >= 0 else 1 << 62

    def after_unpin(_: None, __: object, args: Args, kwargs: Kwargs) -> None:
        request_id = _request_id(args, kwargs)
        said = kwargs.get("reason", args[1] if len(args) > 1 else None)
        reason = _REASONS.get(said) if isinstance(said, str) else None
        if reason is None:
            over = time.monotonic_ns() >= until.get(request_id, 1 << 62)
            reason = PinEnd.expired if over else PinEnd.released
        pins.end(PinCause.ttl, request_id, reason)
        until.pop(request_id, None)

    def nobody_holds() -> None:
        engine.holder = None

    def no_ends() -> None:
        pins.unfollow(PinCause.ttl)
        until.off()

    patches.patch_object(
        scheduler,
        "pin_request",
        Hook(f"{where}.pin_request", "TTL pins", before=before_pin, after=after_pin, off=nobody_holds),
    )
    patches.patch_object(
        scheduler, "unpin_request", Hook(f"{where}.unpin_request", "their end", after=after_unpin, off=no_ends)
    )


def _request_id(args: Args, kwargs: Kwargs) -> str:
    request = args[0] if args else kwargs.get("request", kwargs.get("request_id"))
    return str(getattr(request, "request_id", request))


def _ttl_ns(args: Args, kwargs: Kwargs) -> int:
    """Find the wanted time: the second argument, or the only number given by name."""
    given = [value for value in (*args[1:], *kwargs.values()) if isinstance(value, int | float)]
    return int(given[0] * 1e9) if given else -1
