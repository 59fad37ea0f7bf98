"""NVTX from a real vLLM, heard by a real listener: a library that NVTX loads as it loads a profiler's (listener.c)."""

from __future__ import annotations

import importlib.util
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.vllm.conftest import HERE, Recorded, rows, vllm_environment

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("nvtx") is None, reason="the package nvtx is not installed"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]

INT64 = 2  # NVTX's number of the type
SECOND_NS = 1_000_000_000
# vLLM kills an engine that has not ended after 5 s; a killed one asks nobody for anything. One of 75 would never end:
# two threads of vLLM's worker send by one ZMQ socket in the end; it has asked in the pause before.
SHUTDOWN_S = 30
RANGES = {"step", "forward", "sample"}


class Call(NamedTuple):
    """A call of NVTX's, with the nearest enclosing ranges of its thread, outermost first."""

    time_ns: int
    what: str
    name: str
    payload: int
    inside: tuple[tuple[str, int], ...]
    end_ns: int | None = None


class Heard(NamedTuple):
    """Heard in domain kvtrace, by pid; the lines of processes that flushed; the recording of the run."""

    calls: dict[int, list[Call]]
    flushed: dict[int, list[str]]
    recorded: Recorded


def parse(log: Path) -> list[Call]:
    """The calls of one process in domain kvtrace; fails on a pop without a push, and on a range left open."""
    calls: list[Call] = []
    stacks: dict[str, list[int]] = {}
    for line in log.read_text().splitlines():
        thread, time_ns, what, domain, name, kind, payload = line.split()
        if domain != "kvtrace" or what == "domain":
            continue
        stack = stacks.setdefault(thread, [])
        if what == "pop":
            index = stack.pop()
            calls[index] = calls[index]._replace(end_ns=int(time_ns))
            continue
        assert int(kind) == INT64, line
        inside = tuple((calls[index].name, calls[index].payload) for index in stack)
        if what == "push":
            stack.append(len(calls))
        calls.append(Call(int(time_ns), what, name, int(payload), inside))
    assert not any(stacks.values()), "ranges were left open"
    return calls


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("listener") / "libcupti.so.0"  # as a profiler's it is asked for its last buffers
    source = str(HERE / "listener.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), source], check=True)
    return library


@pytest.fixture(scope="module", params=[1, 2], ids=["one-worker", "two-workers"])
def heard(
    request: pytest.FixtureRequest,
    listener: Path,
    tmp_path_factory: pytest.TempPathFactory,
    record_offline: Callable[..., Recorded],
) -> Heard:
    """A run that evicts and preempts; one worker: in the engine's process."""
    folder = tmp_path_factory.mktemp("heard")
    environment = {
        "NVTX_INJECTION64_PATH": str(listener),
        "NVTX_LISTENER_DIR": str(folder),
        "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": str(SHUTDOWN_S),
    }
    if request.param == 2:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
    recorded = record_offline(
        f"nvtx{request.param}",
        events=False,
        environment=environment,
        more={"shutdown_timeout_s": SHUTDOWN_S},
        tensor_parallel_size=request.param,
    )
    calls = {int(log.stem): parse(log) for log in folder.glob("*.log")}
    lines = {int(log.stem): log.read_text().splitlines() for log in folder.glob("*.log")}
    flushed = {pid: said for pid, said in lines.items() if any(" flush " in line for line in said)}
    return Heard({pid: heard for pid, heard in calls.items() if heard}, flushed, recorded)


def engine(heard: Heard) -> list[Call]:
    [(pid,)] = rows(heard.recorded, "SELECT pid FROM process WHERE roles LIKE '%engine%'")
    return heard.calls[pid]


def named(calls: list[Call], name: str) -> list[Call]:
    return [call for call in calls if call.name == name]


def test_only_the_processes_that_record_steps_speak(heard: Heard) -> None:
    recording = rows(heard.recorded, "SELECT pid FROM process WHERE roles LIKE '%engine%' OR roles LIKE '%worker%'")
    assert set(heard.calls) == {pid for (pid,) in recording}


def test_each_process_asks_the_profiler_last_of_all_for_what_it_holds(heard: Heard) -> None:
    """When vLLM begins to shut it down, for vLLM may kill it before its end; and at its end."""
    assert set(heard.flushed) == set(heard.calls)
    for lines in heard.flushed.values():
        last = list(takewhile(lambda line: " flush " in line, reversed(lines)))
        assert {tuple(line.split()[2:]) for line in last} == {("flush", "cupti", "?", "2", "1")}  # 1: forced
        assert len(last) >= 2


def test_a_range_for_every_recorded_step_from_its_scheduling_to_its_results(heard: Heard) -> None:
    ranges = named(engine(heard), "step")
    recorded = rows(
        heard.recorded,
        "SELECT s.step, s.start_ns - c.offset_ns, s.scheduled_ns - c.offset_ns, s.end_ns - c.offset_ns FROM step s, "
        "(SELECT any_value(offset_ns) AS offset_ns FROM clock) c ORDER BY step",
    )
    assert [call.payload for call in ranges] == [step for step, *_ in recorded]
    assert len(ranges) > 100
    for call, (_, start_ns, scheduled_ns, end_ns) in zip(ranges, recorded, strict=True):
        assert call.what == "push"
        assert call.inside == ()
        assert start_ns <= call.time_ns < scheduled_ns
        assert call.end_ns >= end_ns
    late_ns = [call.time_ns - start_ns for call, (_, start_ns, *_) in zip(ranges, recorded, strict=True)]
    assert statistics.median(late_ns) < 1_000_000  # not of every one: the machine may take the processor away there


def test_a_range_for_every_recorded_forward_pass_and_sampling(heard: Heard) -> None:
    recorded = rows(
        heard.recorded, "SELECT p.pid, f.step FROM forward f JOIN process p USING (process_id) ORDER BY ALL"
    )
    said = sorted((pid, call.payload) for pid, calls in heard.calls.items() for call in named(calls, "forward"))
    assert said == recorded
    with_tokens = {step for (step,) in rows(heard.recorded, "SELECT step FROM step WHERE scheduled_tokens > 0")}
    for calls in heard.calls.values():
        if named(calls, "forward"):
            assert {call.payload for call in named(calls, "sample")} == with_tokens


def test_the_workers_ranges_lie_in_their_step_where_they_share_its_thread(heard: Heard) -> None:
    for calls in heard.calls.values():
        has_steps = bool(named(calls, "step"))
        for call in calls:
            if call.name in RANGES - {"step"}:
                assert call.inside == ((("step", call.payload),) if has_steps else ())


def test_preemption_marks_are_the_recorded_preemptions(heard: Heard) -> None:
    recorded = rows(heard.recorded, "SELECT step FROM request_event WHERE op = 'preempt' ORDER BY time_ns")
    marks = named(engine(heard), "preemption")
    assert [(call.payload,) for call in marks] == recorded
    assert recorded, "the workload is meant to preempt"
    assert all(call.inside == (("step", call.payload),) for call in marks)


def test_eviction_marks_count_the_recorded_evictions_of_their_step(heard: Heard) -> None:
    recorded = rows(heard.recorded, "SELECT step, count(*) FROM block_event WHERE op = 'evict' GROUP BY step")
    marks = Counter()
    for call in named(engine(heard), "eviction"):
        [(_, step)] = call.inside
        marks[step] += call.payload
    assert marks == dict(recorded)
    assert recorded, "the workload is meant to evict"


def test_the_clock_is_told_at_the_start_and_every_second(heard: Heard) -> None:
    """A step or forward pass that begins a second or more after the last mark comes after a new one."""
    for calls in heard.calls.values():
        told, *clocks = named(calls, "clock")
        assert calls[0] == told
        for before, after in pairwise([told, *clocks]):
            assert after.payload - before.payload >= SECOND_NS
        for before, call in pairwise(calls):
            if call.name == "clock":
                told = call
            elif call.name in {"step", "forward"}:  # it asks for the time after all that was heard before
                assert before.time_ns - told.payload < SECOND_NS


def test_a_clock_mark_holds_the_monotonic_clock_right_before_it(heard: Heard) -> None:
    """Nothing is heard in between. The listener reads the same clock; late marks are few, for their median is used."""
    for calls in heard.calls.values():
        for before, call in pairwise(calls):
            assert call.name != "clock" or before.time_ns <= call.payload
        late_ns = [call.time_ns - call.payload for call in named(calls, "clock")]
        assert min(late_ns) >= 0
        assert statistics.median_low(late_ns) < 1_000_000  # of half: the machine may take the processor away there


def test_the_summary_says_so(heard: Heard) -> None:
    count = len(heard.calls)
    expected = f"NVTX: ranges in domain kvtrace from {count} process{'es' if count > 1 else ''}"
    assert expected in heard.recorded.record_stderr


def test_offload_marks_count_the_blocks_that_vllm_hands_to_its_copiers(listener: Path, tmp_path: Path) -> None:
    """Stores as they are, loads negative: of the simple connector's copier, then of the offloading connector's."""
    (tmp_path / "run").mkdir()
    environment = vllm_environment(
        NVTX_INJECTION64_PATH=str(listener), NVTX_LISTENER_DIR=str(tmp_path), KVTRACE_RUN_DIR=str(tmp_path / "run")
    )
    command = [sys.executable, str(HERE / "offload_copies.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [log] = tmp_path.glob("*.log")
    assert [(call.name, call.payload) for call in parse(log) if call.name != "clock"] == [
        ("offload", 3),
        ("offload", -2),
        ("offload", 5),
        ("offload", -5),
    ]


def test_hooks_for_nvtx_did_not_fail(heard: Heard) -> None:
    assert rows(heard.recorded, "SELECT * FROM hook WHERE state = 'disabled'") == []
