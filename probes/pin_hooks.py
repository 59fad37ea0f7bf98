"""Hooks on the scheduler's own ways to keep blocks of requests that do not run."""

from __future__ import annotations

from collections.abc import Callable

from kvtrace.events import PinCause, PinEnd
from kvtrace.probes.engine import Engine
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, argument
from kvtrace.probes.vllm_symbols import BLOCK, KV_CACHE_MANAGER, REQUEST, SCHEDULER
from kvtrace.probes.vllm_types import Request

_FAILED = "that a load failed"
_STREAMING = "WAITING_FOR_STREAMING_REQ"
_ERROR = "FINISHED_ERROR"  # of a request that still loads: that failed, and it is not computed instead


def hooks(engines: Engines) -> list[Hook]:
    """Return the hooks on the scheduler's own ways to keep blocks of requests that do not run."""
    pins = _PinHooks(engines)
    request, tables = Need(REQUEST, "request_id"), Need(KV_CACHE_MANAGER, "get_block_ids")
    fence = Need(SCHEDULER, "deferred_frees")
    return [
        Hook(
            f"{SCHEDULER}._free_request",
            "delayed frees",
            before=pins.before_free_request,
            after=pins.after_free_request,
            needs=(request, tables, Need(SCHEDULER, "requests")),
            off=pins.unfollow(PinCause.streaming),
        ),
        Hook(
            f"{SCHEDULER}._free_blocks",
            "the end of delayed frees",
            after=pins.after_free_blocks,
            needs=(Need(REQUEST, "request_id status"),),
            off=pins.unfollow(PinCause.delayed_free),
        ),
        Hook(
            f"{SCHEDULER}._free_request_blocks",
            "frees put off",
            before=pins.before_fence,
            after=pins.after_fence,
            needs=(request, fence, Need(BLOCK, "block_id is_null")),
            since="0.26.0",
        ),
        Hook(
            f"{SCHEDULER}._drain_deferred_frees",
            "the end of frees put off",
            after=pins.after_drain,
            needs=(fence,),
            off=pins.unfollow(PinCause.in_flight),
            since="0.26.0",
        ),
        Hook(
            f"{SCHEDULER}._update_waiting_for_remote_kv",
            "the end of asynchronous loads",
            before=pins.before_loaded,
            after=pins.after_loaded,
            off=pins.unfollow(PinCause.async_load),
            needs=(request, Need(SCHEDULER, "failed_recving_kv_req_ids", _FAILED)),
        ),
        Hook(
            f"{SCHEDULER}._handle_stopped_request",
            "streaming sessions that wait",
            after=pins.after_stopped,
            needs=(Need(REQUEST, "request_id status"), tables),
        ),
        Hook(
            f"{SCHEDULER}._update_request_as_session",
            "their next input",
            before=pins.before_session,
            needs=(request,),
        ),
    ]


class _PinHooks:
    """Functions of the hooks, which open and close pins of the engine whose scheduler was called."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._schedulers = engines.by_scheduler

    def unfollow(self, *causes: PinCause) -> Callable[[], None]:
        return self._engines.off(lambda engine: engine.pins.unfollow(*causes))

    def before_free_request(self, args: Args, kwargs: Kwargs) -> None:
        engine = self._schedulers.get(id(args[0]))
        if engine is not None and engine.pins.opened:
            engine.pins.end(PinCause.streaming, argument(args, kwargs, 1, "request").request_id, PinEnd.released)

    def after_free_request(self, _: None, __: object, args: Args, kwargs: Kwargs) -> None:
        engine, request = self._found(args, kwargs)
        if engine is None or request.request_id not in args[0].requests:
            return
        # Its load holds its blocks on; or a subclass called its parent's.
        if any(
            engine.pins.is_open(cause, request.request_id) for cause in (PinCause.async_load, PinCause.delayed_free)
        ):
            return
        engine.pins.hold_request(PinCause.delayed_free, request)

    def after_free_blocks(self, _: None, __: object, args: Args, kwargs: Kwargs) -> None:
        engine = self._schedulers.get(id(args[0]))
        if engine is None or not engine.pins.opened:
            return
        request = argument(args, kwargs, 1, "request")
        ended_by = PinEnd.failed if request.status.name == _ERROR else PinEnd.aborted
        engine.pins.end(PinCause.async_load, request.request_id, ended_by)
        engine.pins.end(PinCause.delayed_free, request.request_id, PinEnd.saved)

    def before_fence(self, args: Args, kwargs: Kwargs) -> int:
        return len(args[0].deferred_frees)

    def after_fence(self, entries: int, _: object, args: Args, kwargs: Kwargs) -> None:
        deferred = args[0].deferred_frees
        engine = self._schedulers.get(id(args[0])) if len(deferred) > entries else None
        if engine is None:
            return
        number = engine.number(argument(args, kwargs, 1, "request").request_id)
        for entry in list(deferred)[entries:]:
            engine.pins.fence(entry[1], number)

    def after_drain(self, _: object, __: object, args: Args, kwargs: Kwargs) -> None:
        engine = self._schedulers.get(id(args[0]))
        if engine is None or not engine.pins.fenced:
            return
        left = {id(entry[1]) for entry in args[0].deferred_frees}
        for key in [key for key in engine.pins.fenced if key not in left]:
            del engine.pins.fenced[key]
            engine.pins.end(PinCause.in_flight, key, PinEnd.drained)

    def before_loaded(self, args: Args, kwargs: Kwargs) -> PinEnd:
        failed = self._engines.optional.read(args[0], "failed_recving_kv_req_ids", _FAILED)
        if failed is None:
            return PinEnd.released  # or failed
        return PinEnd.failed if argument(args, kwargs, 1, "request").request_id in failed else PinEnd.loaded

    def after_loaded(self, reason: PinEnd, _: object, args: Args, kwargs: Kwargs) -> None:
        engine, request = self._found(args, kwargs)
        if engine is not None:
            engine.pins.end(PinCause.async_load, request.request_id, reason)

    def after_stopped(self, _: None, finished: bool, args: Args, kwargs: Kwargs) -> None:
        engine = None if finished else self._schedulers.get(id(args[0]))
        if engine is not None and (request := argument(args, kwargs, 1, "request")).status.name == _STREAMING:
            engine.pins.hold_request(PinCause.streaming, request)

    def before_session(self, args: Args, kwargs: Kwargs) -> None:
        engine, session = self._schedulers.get(id(args[0])), argument(args, kwargs, 1, "session")
        if engine is not None:
            engine.pins.end(PinCause.streaming, session.request_id, PinEnd.used)

    def _found(self, args: Args, kwargs: Kwargs) -> tuple[Engine | None, Request]:
        return self._schedulers.get(id(args[0])), argument(args, kwargs, 1, "request")
