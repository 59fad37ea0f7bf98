"""Replays without a trace: the same figures as those of the trace that kvtrace's hooks record."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from kvtrace.errors import KvtraceError
from kvtrace.lab.replay import timing
from kvtrace.lab.replay.check import Outcome
from kvtrace.lab.replay.loops import Loop
from kvtrace.lab.replay.recording import read_recording
from kvtrace.lab.replay.run import Job, replay
from kvtrace.lab.replay.settings import changed_settings, recorded_settings

SETTINGS = (
    (),
    ("async_scheduling=true",),
    ("async_scheduling=true", "num_gpu_blocks=0.5x"),
    ("max_num_seqs=3",),
    ("block_size=2x", "async_scheduling=true"),
    ("cpu_bytes_to_use=8MiB",),
    ("policy=ttl-pin",),
)


def figures(outcome: Outcome) -> Outcome:
    """Latencies to the microsecond: vLLM keeps arrivals as floating-point seconds."""
    latencies = {key: pytest.approx(each, abs=1e-3) for key, each in outcome.latency_ms.items()}
    return replace(outcome, span_s=pytest.approx(outcome.span_s, abs=1e-6), latency_ms=latencies)


@pytest.mark.parametrize("loop", ["open", "closed", "batch"])
def test_figures_are_those_of_the_trace(demo: Path, tmp_path: Path, loop: str) -> None:
    compare(demo, tmp_path, Loop(loop))


def test_figures_of_stops_aborts_and_priorities(served_mix: Path, tmp_path: Path) -> None:
    compare(served_mix, tmp_path, Loop("open", 4.0))


def compare(trace: Path, folder: Path, loop: Loop) -> None:
    recording = read_recording(trace)
    base, model = recorded_settings(recording.engine), timing.fit(recording.steps)
    jobs = []
    for number, changes in enumerate(SETTINGS):
        settings = changed_settings(recording.engine, base, changes)
        target = folder / f"{number}.duckdb"
        jobs.append(Job("with a trace", settings, model, loop, target))
        jobs.append(Job("figures only", settings, model, loop, target, figures_only=True))
    done = replay(recording, jobs)
    evictions = 0
    for (traced, counted), changes in zip(list(pairwise(done))[::2], SETTINGS, strict=True):
        assert not isinstance(traced, KvtraceError), (changes, traced)
        assert not isinstance(counted, KvtraceError), (changes, counted)
        assert counted.trace is None
        assert counted.outcome == figures(traced.outcome), changes
        evictions += counted.outcome.evictions
    assert evictions > 0
