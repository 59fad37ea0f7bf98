"""Figures of a replay without a trace, request by request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvtrace.lab.replay.tally import Tally


@pytest.mark.parametrize(
    ("computed", "preemptions", "hits"),
    [(0, 0, 0), (80, 0, 64), (0, 1, 64)],
    ids=["refused, and ended in the queue", "ended while it ran", "ended after a preemption"],
)
def test_a_request_that_ends_before_its_first_output_has_hits_if_it_was_admitted(
    computed: int, preemptions: int, hits: int
) -> None:
    pool = SimpleNamespace(_maybe_evict_cached_block=lambda block: False)
    scheduler: Any = SimpleNamespace(kv_cache_manager=SimpleNamespace(block_pool=pool))
    request = SimpleNamespace(
        arrival_time=1.0,
        num_output_tokens=0,
        num_computed_tokens=computed,
        num_preemptions=preemptions,
        prefill_stats=SimpleNamespace(num_cached_tokens=64),  # vLLM fills it in when it looks blocks up
    )
    tally = Tally(scheduler)
    recorded: Any = SimpleNamespace(internal_id="a", session=None, prompt_tokens=100)
    tally.arrived(recorded, request)
    tally.ended("a", "abort", 2_000_000_000)
    outcome = tally.outcome(1)
    assert (outcome.hit_tokens, outcome.preemptions, outcome.prompt_tokens) == (hits, preemptions, 100)
