"""The API process, or the offline `LLM`: the internal ids that clients' requests get."""

from __future__ import annotations

import os
import time

from kvtrace.capture.recorder import Recorder
from kvtrace.events import REQUEST_ARRIVAL
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need
from kvtrace.probes.vllm_symbols import ENGINE_REQUEST


def hooks(recorder: Recorder) -> list[Hook]:
    """The hook on the assignment of internal ids."""
    emit = recorder.stream(REQUEST_ARRIVAL)
    announced: set[int] = set()

    def after_assign(_: None, __: object, args: Args, kwargs: Kwargs) -> None:
        request = args[-1] if args else kwargs["request"]
        if os.getpid() not in announced:
            announced.add(os.getpid())
            recorder.note("role", opens=True, role="frontend")
        internal, external = recorder.intern_once(request.request_id, str(request.external_req_id))
        emit(time_ns=time.monotonic_ns(), request=internal, external_id=external)

    return [
        Hook(
            "vllm.v1.engine.input_processor:InputProcessor.assign_request_id",
            "the ids clients know",
            after=after_assign,
            needs=(Need(ENGINE_REQUEST, "request_id external_req_id"),),
        )
    ]
