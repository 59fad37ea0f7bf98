"""The API process, or the offline `LLM`: the internal ids that clients' requests get, and when outputs were handed on.

A request's outputs wait in a `RequestOutputCollector` for the task that sends them to the client. That task asks for
the next one when it has sent the one before, and closes the collector after the last. So its second question is the
time at which the first output was handed on. Only its first two questions are watched; later ones cost nothing.
"""

from __future__ import annotations

import os
import time
from typing import Any

from kvtrace.capture.recorder import Recorder
from kvtrace.events import REQUEST_ARRIVAL, REQUEST_DELIVERY
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need
from kvtrace.probes.vllm_symbols import ENGINE_REQUEST

_COLLECTOR = "vllm.v1.engine.output_processor:RequestOutputCollector"
_FIRST = "_kvtrace_first_ns"
"""Attribute of a collector: when its first output was handed on, 0 before that."""


def hooks(recorder: Recorder) -> list[Hook]:
    """The hooks on the assignment of internal ids, and on collectors of outputs."""
    return [_on_ids(recorder), *_on_outputs(recorder)]


def _on_ids(recorder: Recorder) -> Hook:
    emit = recorder.stream(REQUEST_ARRIVAL)
    announced: set[int] = set()

    def after_assign(_: None, __: object, args: Args, kwargs: Kwargs) -> None:
        request = args[-1] if args else kwargs["request"]
        if os.getpid() not in announced:
            announced.add(os.getpid())
            recorder.note("role", opens=True, role="frontend")
        internal, external = recorder.intern_once(request.request_id, str(request.external_req_id))
        emit(time_ns=time.monotonic_ns(), request=internal, external_id=external)

    return Hook(
        "vllm.v1.engine.input_processor:InputProcessor.assign_request_id",
        "the ids clients know",
        after=after_assign,
        needs=(Need(ENGINE_REQUEST, "request_id external_req_id"),),
    )


def _on_outputs(recorder: Recorder) -> list[Hook]:
    emit = recorder.stream(REQUEST_DELIVERY)

    def after_init(_: None, __: object, args: Args, ___: Kwargs) -> None:
        _watch_first(args[0])

    def after_close(_: None, __: object, args: Args, ___: Kwargs) -> None:
        collector = args[0]
        own: dict[str, Any] = collector.__dict__
        own.pop("get_nowait", None)
        first_ns = own.pop(_FIRST, None)
        if first_ns is not None:
            (request,) = recorder.intern_once(collector.request_id)
            emit(time_ns=time.monotonic_ns(), request=request, first_ns=first_ns)

    needs = (Need(_COLLECTOR, "request_id get_nowait"),)
    lost = "when outputs were handed on to clients"
    return [
        Hook(f"{_COLLECTOR}.__init__", lost, after=after_init, needs=needs),
        Hook(f"{_COLLECTOR}.close", lost, after=after_close, needs=needs),
    ]


def _watch_first(collector: Any) -> None:
    """Note when a collector is asked for its second output, and then leave it alone."""
    own: dict[str, Any] = collector.__dict__
    get_nowait = collector.get_nowait
    asked = False

    def watched() -> Any:
        nonlocal asked
        if asked:
            own[_FIRST] = time.monotonic_ns()
            own.pop("get_nowait", None)
        asked = True
        return get_nowait()

    own |= {_FIRST: 0, "get_nowait": watched}
