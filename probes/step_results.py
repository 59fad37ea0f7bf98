"""Results of steps: when they came back, how many tokens they brought, and whose first ones."""

from __future__ import annotations

from functools import partial
from typing import Any

from kvtrace.capture._native import Updates
from kvtrace.capture.stream import Emit
from kvtrace.events import REQUEST_EVENT, STEP_UPDATE, RequestOp
from kvtrace.probes.engine import STEP_ATTRIBUTE, Engine
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Argument, Hook, Need
from kvtrace.probes.vllm_symbols import MODEL_OUTPUT, REQUEST, SCHEDULER


def hooks(engines: Engines) -> list[Hook]:
    """The hook on `Scheduler.update_from_output`."""

    def missing(engine: Engine, output: Any) -> None:
        if engine.step >= 0:
            engines.lacks.tell(output, STEP_ATTRIBUTE, "which step results belong to")

    packer, emit_request = engines.recorder.packer(STEP_UPDATE), engines.recorder.stream(REQUEST_EVENT)
    record = partial(first_tokens, emit_request=emit_request)
    updates = Updates(packer, engines.by_scheduler, STEP_ATTRIBUTE, missing, record)
    return [
        Hook(
            f"{SCHEDULER}.update_from_output",
            "when steps end, first tokens",
            before=updates.before,
            after=updates.after,
            off=engines.off(Engine.without_first_tokens),
            takes=(Argument(1, "scheduler_output"), Argument(2, "model_runner_output")),
            needs=(Need(MODEL_OUTPUT, "sampled_token_ids"), Need(REQUEST, "num_output_tokens num_computed_tokens")),
        ),
    ]


def first_tokens(engine: Engine, emit_request: Emit) -> None:
    """Record the first token of every admitted request that has one by now."""
    if not engine.awaiting_first_token:
        return
    arrived = [request for request in engine.awaiting_first_token.values() if request.num_output_tokens > 0]
    for request in arrived:
        del engine.awaiting_first_token[request.request_id]
        live = engine.request(request.request_id)
        emit_request(
            time_ns=engine.update_start,
            step=engine.acting_step,
            request=live.number,
            op=RequestOp.first_token,
            reason=0,
            computed_tokens=request.num_computed_tokens,
            output_tokens=request.num_output_tokens,
            local_cached_tokens=-1,
            external_cached_tokens=-1,
            blocks=sum(live.table),
        )
