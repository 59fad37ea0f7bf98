"""Decisions of the TTL-pin scheduler, and which of vLLM's schedulers it is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvtrace.lab.tool_times import ToolTimes


def test_a_tools_estimate_is_what_is_known_then_what_was_seen() -> None:
    times = ToolTimes({"search": 2.0}, unseen=0.5)
    assert (times.estimate("search"), times.estimate("shell")) == (2.0, 0.5)
    times.saw("shell", 3.0)
    times.saw("search", 6.0)
    assert (times.estimate("search"), times.estimate("shell")) == (3.0, 3.0)


@pytest.mark.vllm
@pytest.mark.parametrize("ahead", [False, True])
def test_it_is_the_scheduler_that_the_engine_needs(ahead: bool) -> None:
    pytest.importorskip("vllm")
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    from kvtrace.lab.ttl_pin import TTLPinScheduler

    config = SimpleNamespace(scheduler_config=SimpleNamespace(async_scheduling=ahead))
    made = TTLPinScheduler.__new__(TTLPinScheduler, vllm_config=config)
    assert isinstance(made, TTLPinScheduler)
    assert isinstance(made, AsyncScheduler) is ahead
    if ahead:  # its own methods first, then the asynchronous scheduler's
        kinds = type(made).__mro__
        assert kinds.index(TTLPinScheduler) < kinds.index(AsyncScheduler)
