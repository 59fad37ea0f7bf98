"""Decisions of the TTL-pin scheduler, and which of vLLM's schedulers it is."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvtrace.lab.tool_times import ToolTimes

ROOT = Path(__file__).parents[2]


def test_a_tools_estimate_is_what_is_known_then_what_was_seen() -> None:
    times = ToolTimes({"search": 2.0}, unseen=0.5)
    assert (times.estimate("search"), times.estimate("shell")) == (2.0, 0.5)
    times.saw("shell", 3.0)
    times.saw("search", 6.0)
    assert (times.estimate("search"), times.estimate("shell")) == (3.0, 3.0)


def test_only_its_subcommand_imports_the_lab() -> None:
    rooms = [ROOT / name for name in ("kvtrace", "probes", "ingest", "queries", "viewer")]
    modules = {path.relative_to(ROOT): path.read_text() for room in rooms for path in room.glob("**/*.py")}
    others = {path: text for path, text in modules.items() if "lab" not in path.parts}
    importing = {str(path) for path, text in others.items() if re.search(r"(import|from) kvtrace\.lab\b", text)}
    assert importing == {"kvtrace/cli/lab.py"}


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
