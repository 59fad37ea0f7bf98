"""Requests in the scheduler: queued, preempted, finished."""

from __future__ import annotations

import time
from typing import Any

from kvtrace.events import REQUEST_EVENT, REQUEST_QUEUED, FinishReason, RequestOp
from kvtrace.probes.engine import Engine, Engines
from kvtrace.probes.hooks import Hook
from kvtrace.probes.steps import first_tokens

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_REASONS = {
    "FINISHED_STOPPED": FinishReason.stop,
    "FINISHED_LENGTH_CAPPED": FinishReason.length,
    "FINISHED_ABORTED": FinishReason.abort,
    "FINISHED_IGNORED": FinishReason.ignored,
    "FINISHED_ERROR": FinishReason.error,
}


def hooks(engines: Engines) -> list[Hook]:
    """The hooks on a request's way into, out of and back to the waiting queue."""
    schedulers = engines.by_scheduler
    recorder = engines.recorder
    emit_queued = recorder.stream(REQUEST_QUEUED)
    emit_event = recorder.stream(REQUEST_EVENT)
    now = time.monotonic_ns

    def before_add(scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        engine = schedulers.get(id(scheduler))
        if engine is None or request.request_id in engine.requests:  # a streaming session's next chunk
            return
        live = engine.request(request.request_id)
        session, turn = _tags(request)
        emit_queued(
            now(),
            live.number,
            int(request.arrival_time * 1e9),
            request.num_prompt_tokens,
            request.max_tokens,
            request.priority,
            recorder.intern(session),
            turn,
        )

    def before_preempt(scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        engine = schedulers.get(id(scheduler))
        if engine is None:
            return
        live = engine.request(request.request_id)
        engine.preempted += 1
        event(engine, request, RequestOp.preempt, 0)
        live.preempted = True
        live.admitted = False
        live.lookups = 0
        live.local_hit = live.external_hit = 0
        live.recompute_until = max(live.recompute_until, request.num_computed_tokens)
        live.table = []

    def before_free(scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        engine = schedulers.get(id(scheduler))
        if engine is None or request.request_id not in engine.requests:
            return
        first_tokens(engine, emit_event)
        engine.awaiting_first_token.pop(request.request_id, None)
        engine.finished += 1
        event(engine, request, RequestOp.finish, _REASONS.get(request.status.name, FinishReason.other))

    def after_free(_: None, __: Any, scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        engine = schedulers.get(id(scheduler))
        if engine is not None and request.request_id not in scheduler.requests:
            forget(engine, request)

    def after_free_blocks(_: None, __: Any, scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        """The end of a delayed free; otherwise `_free_request` is still at work and comes after."""
        engine = schedulers.get(id(scheduler))
        if engine is not None and request.request_id not in scheduler.requests:
            forget(engine, request)

    def forget(engine: Engine, request: Any) -> None:
        if engine.requests.pop(request.request_id, None) is not None:
            recorder.forget(request.request_id)

    def event(engine: Engine, request: Any, op: RequestOp, reason: int) -> None:
        live = engine.request(request.request_id)
        computed, outputs = request.num_computed_tokens, request.num_output_tokens
        emit_event(now(), engine.acting_step, live.number, op, reason, computed, outputs, -1, -1, sum(live.table))

    return [
        Hook(f"{_SCHEDULER}.add_request", "when requests are queued", before=before_add),
        Hook(f"{_SCHEDULER}._preempt_request", "preemptions", before=before_preempt),
        Hook(f"{_SCHEDULER}._free_request", "when and why requests end", before=before_free, after=after_free),
        Hook(f"{_SCHEDULER}._free_blocks", "the end of delayed frees", after=after_free_blocks),
    ]


def _tags(request: Any) -> tuple[str, int]:
    """The session and turn a client passed along, or ("", -1)."""
    parameters = request.sampling_params or request.pooling_params
    extra = getattr(parameters, "extra_args", None) or getattr(parameters, "extra_kwargs", None) or {}
    session = extra.get("kvtrace_session", getattr(request, "session_id", None))
    turn = extra.get("kvtrace_turn")
    return ("" if session is None else str(session)), (int(turn) if str(turn).isdigit() else -1)
