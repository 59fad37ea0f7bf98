"""Results of steps: when they came back, how many tokens they brought, and whose first ones."""

from __future__ import annotations

from kvtrace.capture._native import Updates
from kvtrace.events import STEP_UPDATE
from kvtrace.probes.engine import STEP_ATTRIBUTE, Engine
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Argument, Hook, Need
from kvtrace.probes.request_events import RequestEvents
from kvtrace.probes.vllm_symbols import MODEL_OUTPUT, REQUEST, SCHEDULER
from kvtrace.probes.vllm_types import SchedulerOutput


def hooks(engines: Engines) -> list[Hook]:
    """The hook on `Scheduler.update_from_output`."""

    def missing(engine: Engine, output: SchedulerOutput) -> None:
        if engine.step >= 0:
            engines.optional.tell(output, STEP_ATTRIBUTE, "which step results belong to")

    packer, first_tokens = engines.recorder.packer(STEP_UPDATE), RequestEvents(engines.recorder).first_tokens
    updates = Updates(packer, engines.by_scheduler, STEP_ATTRIBUTE, missing, first_tokens)
    return [
        Hook(
            f"{SCHEDULER}.update_from_output",
            "when steps end, first tokens",
            before=updates.before,
            after=updates.after,
            catches_up=True,
            off=engines.off(Engine.without_first_tokens),
            takes=(Argument(1, "scheduler_output"), Argument(2, "model_runner_output")),
            needs=(Need(MODEL_OUTPUT, "sampled_token_ids"), Need(REQUEST, "num_output_tokens num_computed_tokens")),
        ),
    ]
