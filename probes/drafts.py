"""Draft tokens of speculative decoding: how many the model verified, and how many it accepted."""

from __future__ import annotations

import time
from collections.abc import Mapping

from kvtrace.events import DRAFT
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Args, Hook, Kwargs, argument
from kvtrace.probes.vllm_symbols import SCHEDULER


def hooks(engines: Engines) -> list[Hook]:
    """The hook on the scheduler's own count, which it makes for each request whose drafts a step verified."""
    emit = engines.recorder.stream(DRAFT)

    def before_count(args: Args, kwargs: Kwargs) -> None:
        engine = engines.by_scheduler.get(id(args[0]))
        if engine is None:
            return
        request_id = argument(args, kwargs, 5, "request_id")
        invalid: Mapping[str, int] = argument(args, kwargs, 4, "num_invalid_spec_tokens", None) or {}
        emit(
            time_ns=time.monotonic_ns(),
            step=engine.acting_step,
            request=engine.number(request_id),
            drafted_tokens=argument(args, kwargs, 2, "num_draft_tokens"),
            accepted_tokens=argument(args, kwargs, 3, "num_accepted_tokens"),
            invalid_tokens=invalid.get(request_id, 0),
        )

    return [Hook(f"{SCHEDULER}.make_spec_decoding_stats", "drafted and accepted tokens", before=before_count)]
