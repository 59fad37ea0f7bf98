"""Turns in a request's life that Python records: admissions, first tokens, preemptions. Ends are C's."""

from __future__ import annotations

from kvtrace.capture.recorder import Recorder
from kvtrace.events import REQUEST_EVENT, RequestOp
from kvtrace.probes.engine import Engine, LiveRequest
from kvtrace.probes.vllm_types import Request


class RequestEvents:
    """Records `request_event`."""

    def __init__(self, recorder: Recorder) -> None:
        self._emit = recorder.stream(REQUEST_EVENT)

    def record(
        self,
        op: RequestOp,
        live: LiveRequest,
        request: Request,
        *,
        time_ns: int,
        step: int,
        computed_tokens: int | None = None,
        local_cached_tokens: int = -1,
        external_cached_tokens: int = -1,
    ) -> None:
        """Record a turn of a request that is not its end.

        Args:
            op: What happened.
            live: What is known of the request.
            request: vLLM's request.
            time_ns: CLOCK_MONOTONIC.
            step: The step it belongs to.
            computed_tokens: Tokens whose KV existed; those that vLLM's request says by default.
            local_cached_tokens: With an admission: tokens found in the GPU prefix cache; -1 if that is not known.
            external_cached_tokens: Likewise, by a KV connector.
        """
        self._emit(
            time_ns=time_ns,
            step=step,
            request=live.number,
            op=op,
            reason=0,
            computed_tokens=request.num_computed_tokens if computed_tokens is None else computed_tokens,
            output_tokens=request.num_output_tokens,
            local_cached_tokens=local_cached_tokens,
            external_cached_tokens=external_cached_tokens,
            blocks=sum(live.table),
        )

    def first_tokens(self, engine: Engine) -> None:
        """Record the first token of every admitted request that has one by now."""
        if not engine.awaiting_first_token:
            return
        arrived = [request for request in engine.awaiting_first_token.values() if request.num_output_tokens > 0]
        for request in arrived:
            del engine.awaiting_first_token[request.request_id]
            live, when = engine.request(request.request_id), engine.update_start
            self.record(RequestOp.first_token, live, request, time_ns=when, step=engine.acting_step)
