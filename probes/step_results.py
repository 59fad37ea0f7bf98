"""Results of steps: when they came back, how many tokens they brought, and whose first ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from kvtrace.capture.stream import compiled
from kvtrace.events import REQUEST_EVENT, STEP_UPDATE, RequestOp
from kvtrace.probes.engine import STEP_ATTRIBUTE, Engine
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, argument
from kvtrace.probes.vllm_symbols import MODEL_OUTPUT, REQUEST, SCHEDULER


class Updates:
    """Hooks around `Scheduler.update_from_output`: record when a step's results came back, and its tokens.

    Args:
        engines: Whose results they are.
        missing: Called with an engine and a scheduler's output that has no mark.
        first_tokens: Called with an engine some of whose requests have no token yet.
    """

    def __init__(
        self, engines: Engines, missing: Callable[[Engine, Any], None], first_tokens: Callable[[Engine], None]
    ) -> None:
        self._schedulers, self._missing, self._first_tokens = engines.by_scheduler, missing, first_tokens
        self._emit = engines.recorder.stream(STEP_UPDATE)

    def before(self, args: Args, kwargs: Kwargs) -> Engine | None:
        """From now on the engine acts for the step whose results these are."""
        engine = self._schedulers.get(id(args[0]))
        if engine is None or engine.updating:
            return None
        engine.updating = True
        engine.update_start = time.monotonic_ns()
        engine.finished = 0
        output = argument(args, kwargs, 1, "scheduler_output")
        mark = getattr(output, STEP_ATTRIBUTE, None)
        if mark is None:
            self._missing(engine, output)
        engine.acting_step = -1 if mark is None else mark[1]
        return engine

    def after(self, engine: Engine | None, _: Any, args: Args, kwargs: Kwargs) -> None:
        """Record it."""
        if engine is None:
            return
        step = engine.acting_step
        if engine.awaiting_first_token:
            self._first_tokens(engine)
        tokens = sum(map(len, argument(args, kwargs, 2, "model_runner_output").sampled_token_ids or ()))
        self._emit(engine.update_start, time.monotonic_ns(), step, tokens, engine.finished)
        engine.acting_step = engine.step
        engine.updating = False


def _updates(engines: Engines) -> Updates:
    """`Updates`, in compiled code where there is some."""
    native, packer = compiled(), engines.recorder.packer(STEP_UPDATE)
    record = partial(first_tokens, emit_request=engines.recorder.stream(REQUEST_EVENT))

    def missing(engine: Engine, output: Any) -> None:
        if engine.step >= 0:
            engines.lacks.tell(output, STEP_ATTRIBUTE, "which step results belong to")

    if native is None:
        return Updates(engines, missing, record)
    made: Updates = native.Updates(packer, engines.by_scheduler, STEP_ATTRIBUTE, missing, record)
    return made


def hooks(engines: Engines) -> list[Hook]:
    """The hook on `Scheduler.update_from_output`."""
    updates = _updates(engines)
    return [
        Hook(
            f"{SCHEDULER}.update_from_output",
            "when steps end, first tokens",
            before=updates.before,
            after=updates.after,
            off=engines.off(Engine.without_first_tokens),
            needs=(Need(MODEL_OUTPUT, "sampled_token_ids"), Need(REQUEST, "num_output_tokens num_computed_tokens")),
        ),
    ]


def first_tokens(engine: Engine, emit_request: Any) -> None:
    """Record the first token of every admitted request that has one by now."""
    if not engine.awaiting_first_token:
        return
    arrived = [request for request in engine.awaiting_first_token.values() if request.num_output_tokens > 0]
    for request in arrived:
        del engine.awaiting_first_token[request.request_id]
        live = engine.request(request.request_id)
        emit_request(
            engine.update_start,
            engine.acting_step,
            live.number,
            RequestOp.first_token,
            0,
            request.num_computed_tokens,
            request.num_output_tokens,
            -1,
            -1,
            sum(live.table),
        )
