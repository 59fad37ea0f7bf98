"""Requests in the scheduler: queued, preempted, finished."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvtrace.capture._native import Ends
from kvtrace.capture.recorder import Recorder
from kvtrace.events import REQUEST_EVENT, REQUEST_QUEUED, REQUEST_REMOTE, FinishReason, RemotePart, RequestOp
from kvtrace.probes.engine import NOT_ADMITTED, Engine
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Args, Argument, Hook, Kwargs, Need, argument
from kvtrace.probes.nvtx import Ranges
from kvtrace.probes.optional_attributes import OptionalAttributes
from kvtrace.probes.request_events import RequestEvents
from kvtrace.probes.request_tags import client_tags
from kvtrace.probes.vllm_symbols import REQUEST, SAMPLING, SCHEDULER
from kvtrace.probes.vllm_types import Request

_TAGS = "sessions and turns"
_HALVES = "the halves of prefill/decode pairs"
_REASONS = {
    "FINISHED_STOPPED": FinishReason.stop,
    "FINISHED_LENGTH_CAPPED": FinishReason.length,
    "FINISHED_ABORTED": FinishReason.abort,
    "FINISHED_IGNORED": FinishReason.ignored,
    "FINISHED_ERROR": FinishReason.error,
}


class _Requests:
    """Hooks on a request's way into, out of and back to the waiting queue."""

    def __init__(self, engines: Engines, ranges: Ranges | None) -> None:
        self._engines, self._ranges, self._recorder = engines, ranges, engines.recorder
        self._emit_queued = engines.recorder.stream(REQUEST_QUEUED)
        self._events = RequestEvents(engines.recorder)
        self._note_remote = _remotes(engines.recorder, engines.optional)

    def before_add(self, args: Args, kwargs: Kwargs) -> None:
        """Record that a request is queued."""
        engine, request = self._engines.by_scheduler.get(id(args[0])), argument(args, kwargs, 1, "request")
        if engine is None or request.request_id in engine.requests:  # a streaming session's next chunk
            return
        request_id, recorder = request.request_id, self._recorder
        number = engine.request(request_id).number if engine.follows_requests else engine.number(request_id)
        session, turn, tool = _tags(request, self._engines.optional)
        # Not remembered: there is no end to sessions.
        session_text, tool_text = recorder.intern_once(session, tool)
        self._emit_queued(
            time_ns=time.monotonic_ns(),
            request=number,
            arrival_ns=int(request.arrival_time * 1e9) - recorder.clock_moved_ns(),
            prompt_tokens=request.num_prompt_tokens,
            max_tokens=-1 if request.max_tokens is None else _in_range(request.max_tokens, 31),
            priority=_in_range(request.priority, 63),
            session=session_text if session else 0,
            turn=turn,
            tool=tool_text if tool else 0,
        )
        self._note_remote(number, request)

    def before_preempt(self, args: Args, kwargs: Kwargs) -> None:
        """Record a preemption; the request begins again."""
        engine, request = self._engines.by_scheduler.get(id(args[0])), argument(args, kwargs, 1, "request")
        if engine is None:
            return
        live = engine.request(request.request_id)
        if live.decode_from == NOT_ADMITTED:  # the call of a subclass's parent: it is waiting already
            return
        engine.preempted += 1
        now, step = time.monotonic_ns(), engine.acting_step
        self._events.record(RequestOp.preempt, live, request, time_ns=now, step=step)
        if self._ranges is not None:
            self._ranges.preempted(step)
        live.preempted = True
        live.decode_from = NOT_ADMITTED
        live.lookups = 0
        live.local_hit = live.external_hit = 0
        live.recompute_until = max(live.recompute_until, request.num_computed_tokens)
        live.table = []

    def before_end(self, engine: Engine, request: Request) -> None:
        """Record first tokens, which come with the same results; this request will get none any more."""
        self._events.first_tokens(engine)
        if engine.awaiting_first_token is not None:
            engine.awaiting_first_token.pop(request.request_id, None)

    def after_free(self, _: None, __: object, args: Args, kwargs: Kwargs) -> None:
        """Forget the request, unless its blocks are still held: then `_free_blocks` comes later."""
        engine = self._engines.by_scheduler.get(id(args[0]))
        request_id = argument(args, kwargs, 1, "request").request_id
        if engine is not None and request_id in engine.requests and request_id not in args[0].requests:
            engine.forget(request_id)


def hooks(engines: Engines, ranges: Ranges | None) -> list[Hook]:
    """The hooks on a request's way into, out of and back to the waiting queue."""
    requests = _Requests(engines, ranges)
    progress = Need(REQUEST, "request_id num_computed_tokens num_output_tokens")
    ended, unseen = Need(SCHEDULER, "requests"), _ends(engines)
    ends = Ends(engines.recorder.packer(REQUEST_EVENT), engines.by_scheduler, _REASONS, requests.before_end)
    return [
        Hook(
            f"{SCHEDULER}.add_request",
            "when requests are queued",
            before=requests.before_add,
            catches_up=True,
            needs=(
                Need(REQUEST, "request_id arrival_time num_prompt_tokens max_tokens priority"),
                Need(REQUEST, "sampling_params pooling_params"),
                Need(SAMPLING, "extra_args", _TAGS),
                Need(REQUEST, "kv_transfer_params", _HALVES),
            ),
        ),
        Hook(
            f"{SCHEDULER}._preempt_request",
            "preemptions",
            before=requests.before_preempt,
            catches_up=True,
            needs=(progress,),
        ),
        Hook(
            f"{SCHEDULER}._free_request",
            "when and why requests end",
            before=ends.before,
            after=requests.after_free,
            catches_up=True,
            takes=(Argument(1, "request"),),
            off=unseen("_free_request"),
            needs=(progress, Need(REQUEST, "status"), ended),
        ),
        Hook(
            f"{SCHEDULER}._free_blocks",
            "the end of delayed frees",
            after=requests.after_free,
            needs=(ended,),
            off=unseen("_free_blocks"),
        ),
    ]


def _ends(engines: Engines) -> Callable[[str], Callable[[], None]]:
    """Make the functions for the two hooks that see requests end, called when they are off: one hook is enough."""
    left, none_left = {"_free_request", "_free_blocks"}, engines.off(Engine.without_ends)

    def unseen(by: str) -> Callable[[], None]:
        def off() -> None:
            left.discard(by)
            if not left:
                none_left()

        return off

    return unseen


def _remotes(recorder: Recorder, optional: OptionalAttributes) -> Callable[[int, Request], None]:
    """Make the function that records which half of a prefill/decode pair a request is, as its client says."""
    emit = recorder.stream(REQUEST_REMOTE)

    def note(number: int, request: Request) -> None:
        parameters = optional.read(request, "kv_transfer_params", _HALVES)
        if not isinstance(parameters, dict):
            return
        decodes = bool(parameters.get("do_remote_prefill"))
        if decodes or parameters.get("do_remote_decode"):
            part = RemotePart.decode if decodes else RemotePart.prefill
            names = (str(parameters.get(key) or "") for key in ("remote_request_id", "transfer_id"))
            remote, transfer = recorder.intern_once(*names)
            emit(time_ns=time.monotonic_ns(), request=number, part=part, remote_request=remote, transfer=transfer)

    return note


def _tags(request: Request, optional: OptionalAttributes) -> tuple[str, int, str]:
    """The session, turn and tool a client passed along; "", -1 and "" for those it did not."""
    extra = client_tags(request, optional, _TAGS)
    session = extra.get("kvtrace_session", getattr(request, "session_id", None))
    session = "" if session is None else str(session)
    if not extra:
        return session, -1, ""
    turn = str(extra.get("kvtrace_turn"))
    is_number = turn.isascii() and turn.isdigit() and len(turn) < 10
    return session, int(turn) if is_number else -1, str(extra.get("kvtrace_tool") or "")


def _in_range(value: int, bits: int) -> int:
    """Bound a client's number to what a record can hold."""
    return max(-(1 << bits), min(value, (1 << bits) - 1))
