"""The hooks on the scheduler's own ways to keep blocks of requests that do not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvtrace.events import PinCause, PinEnd
from kvtrace.probes.engine import Engine
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, argument
from kvtrace.probes.vllm_symbols import BLOCK, KV_CACHE_MANAGER, REQUEST, SCHEDULER

_FAILED = "that a load failed"
_STREAMING = "WAITING_FOR_STREAMING_REQ"


def hooks(engines: Engines) -> list[Hook]:
    """The hooks on the scheduler's own ways to keep blocks of requests that do not run."""
    schedulers = engines.by_scheduler

    def found(args: Args, kwargs: Kwargs) -> tuple[Engine | None, Any]:
        return schedulers.get(id(args[0])), argument(args, kwargs, 1, "request")

    def before_free_request(args: Args, kwargs: Kwargs) -> None:
        engine = schedulers.get(id(args[0]))
        if engine is not None and engine.pins.opened:
            engine.pins.end(PinCause.streaming, argument(args, kwargs, 1, "request").request_id, PinEnd.released)

    def after_free_request(_: None, __: Any, args: Args, kwargs: Kwargs) -> None:
        engine, request = found(args, kwargs)
        if engine is None or request.request_id not in args[0].requests:
            return
        if engine.pins.is_open(PinCause.delayed_free, request.request_id):  # by a subclass's call of its parent's
            return
        engine.pins.end(PinCause.async_load, request.request_id, PinEnd.aborted)
        engine.pins.hold_request(PinCause.delayed_free, request)

    def after_free_blocks(_: None, __: Any, args: Args, kwargs: Kwargs) -> None:
        engine = schedulers.get(id(args[0]))
        if engine is None or not engine.pins.opened:
            return
        request = argument(args, kwargs, 1, "request")
        engine.pins.end(PinCause.async_load, request.request_id, PinEnd.aborted)
        engine.pins.end(PinCause.delayed_free, request.request_id, PinEnd.saved)

    def before_fence(args: Args, kwargs: Kwargs) -> int:
        return len(args[0].deferred_frees)

    def after_fence(entries: int, _: Any, args: Args, kwargs: Kwargs) -> None:
        deferred = args[0].deferred_frees
        engine = schedulers.get(id(args[0])) if len(deferred) > entries else None
        if engine is None:
            return
        number = engine.number(argument(args, kwargs, 1, "request").request_id)
        for entry in list(deferred)[entries:]:
            engine.pins.fence(entry[1], number)

    def after_drain(_: Any, __: Any, args: Args, kwargs: Kwargs) -> None:
        engine = schedulers.get(id(args[0]))
        if engine is None or not engine.pins.fenced:
            return
        left = {id(entry[1]) for entry in args[0].deferred_frees}
        for key in [key for key in engine.pins.fenced if key not in left]:
            del engine.pins.fenced[key]
            engine.pins.end(PinCause.in_flight, key, PinEnd.drained)

    def before_loaded(args: Args, kwargs: Kwargs) -> PinEnd:
        failed = engines.lacks.read(args[0], "failed_recving_kv_req_ids", _FAILED)
        if failed is None:
            return PinEnd.released  # or failed
        return PinEnd.failed if argument(args, kwargs, 1, "request").request_id in failed else PinEnd.loaded

    def after_loaded(reason: PinEnd, _: Any, args: Args, kwargs: Kwargs) -> None:
        engine, request = found(args, kwargs)
        if engine is not None:
            engine.pins.end(PinCause.async_load, request.request_id, reason)

    def after_stopped(_: None, finished: bool, args: Args, kwargs: Kwargs) -> None:
        engine = None if finished else schedulers.get(id(args[0]))
        if engine is not None and (request := argument(args, kwargs, 1, "request")).status.name == _STREAMING:
            engine.pins.hold_request(PinCause.streaming, request)

    def before_session(args: Args, kwargs: Kwargs) -> None:
        engine, session = schedulers.get(id(args[0])), argument(args, kwargs, 1, "session")
        if engine is not None:
            engine.pins.end(PinCause.streaming, session.request_id, PinEnd.used)

    def unfollow(*causes: PinCause) -> Callable[[], None]:
        return engines.off(lambda engine: engine.pins.unfollow(*causes))

    request, tables = Need(REQUEST, "request_id"), Need(KV_CACHE_MANAGER, "get_block_ids")
    fence = Need(SCHEDULER, "deferred_frees")
    return [
        Hook(
            f"{SCHEDULER}._free_request",
            "delayed frees",
            before=before_free_request,
            after=after_free_request,
            needs=(request, tables, Need(SCHEDULER, "requests")),
            off=unfollow(PinCause.streaming),
        ),
        Hook(
            f"{SCHEDULER}._free_blocks",
            "the end of delayed frees",
            after=after_free_blocks,
            needs=(request,),
            off=unfollow(PinCause.delayed_free),
        ),
        Hook(
            f"{SCHEDULER}._free_request_blocks",
            "frees put off",
            before=before_fence,
            after=after_fence,
            needs=(request, fence, Need(BLOCK, "block_id is_null")),
            since="0.26.0",
        ),
        Hook(
            f"{SCHEDULER}._drain_deferred_frees",
            "the end of frees put off",
            after=after_drain,
            needs=(fence,),
            off=unfollow(PinCause.in_flight),
            since="0.26.0",
        ),
        Hook(
            f"{SCHEDULER}._update_waiting_for_remote_kv",
            "the end of asynchronous loads",
            before=before_loaded,
            after=after_loaded,
            off=unfollow(PinCause.async_load),
            needs=(request, Need(SCHEDULER, "failed_recving_kv_req_ids", _FAILED)),
        ),
        Hook(
            f"{SCHEDULER}._handle_stopped_request",
            "streaming sessions that wait",
            after=after_stopped,
            needs=(Need(REQUEST, "request_id status"), tables),
        ),
        Hook(f"{SCHEDULER}._update_request_as_session", "their next input", before=before_session, needs=(request,)),
    ]
