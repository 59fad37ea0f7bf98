"""On a GPU: marks, which are events, tell the same time as stamps, which are kernels; what each costs.

And the thread that takes them home does not spoil a graph that the engine captures meanwhile.

    python -m pytest tests/gpu/test_cuda_events.py -rP

Needs no vLLM.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy
import pytest

from tests.gpu import has_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_gpu(), reason="needs a CUDA device and CuPy"),
]
ROUNDS = 40


class Notes:
    """Stands for a `Recorder`."""

    def __init__(self) -> None:
        self.clocks: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []
        self.windows = 0

    def note(self, kind: str, **facts: Any) -> None:
        {"gpu_clock": self.clocks, "device": self.failures}.get(kind, []).append(facts)

    def append(self, event: Any, records: Any) -> None:
        self.windows += len(records)

    def drop(self, event: Any, count: int) -> None:
        self.failures.append({"dropped": count})


@pytest.mark.parametrize("behind", [0.0, 1.5], ids=["at once", "late"])
def test_a_mark_lies_between_the_stamps_around_it(behind: float) -> None:
    """By at most what the timer says of its event; counted from an event before it, and from one after it."""
    import torch

    from kvtrace.probes.device.cuda_events import EventRing
    from kvtrace.probes.device.graph_timestamps import GraphTimestamps
    from kvtrace.probes.device.timer import GpuTimer

    side, stream = torch.cuda.Stream(priority=-1), torch.cuda.Stream()
    notes, stamps, marks = Notes(), GraphTimestamps(2 * ROUNDS), EventRing(4 * ROUNDS)
    timer = GpuTimer(notes)  # type: ignore[arg-type]
    with torch.cuda.stream(side):
        timer.keep(side)
        time.sleep(behind)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(4_000_000)  # a few ms, so that the GPU does not wait for the processor
        marks.begin()
        for place in range(ROUNDS):
            stamps.stamp(place, 0)(stream.cuda_stream)
            marks.mark(place)(stream.cuda_stream)
            stamps.stamp(place, 1)(stream.cuda_stream)
        assert marks.end(7)
        stream.synchronize()
        first = timer.event
        time.sleep(1.1)
        timer.keep(side)
        assert timer.event != first
        # From the later event: these were before it.
        taken = marks.take(timer.event, timer.event_ns, 9)
    around = stamps.places.cpu().numpy().reshape(-1, 4)[:ROUNDS, :2]
    assert taken is not None
    assert (taken.steps, taken.places.tolist()) == ([7], list(range(ROUNDS)))
    after, before = taken.times_ns - around[:, 0], around[:, 1] - taken.times_ns
    print("after the stamp", numpy.quantile(after, [0, 0.5, 1]), "before the next", numpy.quantile(before, [0, 0.5, 1]))
    print("uncertainty", [clock["event_uncertainty_ns"] for clock in notes.clocks])
    uncertainty = notes.clocks[-1]["event_uncertainty_ns"]
    assert 0 < uncertainty < 5000
    assert after.min() > -uncertainty - 100
    assert before.min() > -uncertainty - 100
    assert numpy.median(after + before) < 20_000  # not of all: other processes' work may come between


def test_a_mark_costs_the_processor_less_than_a_stamp() -> None:
    import torch

    from kvtrace.probes.device.cuda_events import EventRing
    from kvtrace.probes.device.graph_timestamps import GraphTimestamps

    free = torch.cuda.mem_get_info()[0]
    start = time.perf_counter()
    marks = EventRing()
    made = time.perf_counter() - start
    print("making events: ms", 1e3 * made, "bytes", free - torch.cuda.mem_get_info()[0])
    stamps, stream = GraphTimestamps(1), torch.cuda.current_stream()
    took: dict[str, list[int]] = {"mark": [], "stamp": []}
    calls = {"mark": marks.mark(1), "stamp": stamps.stamp(0, 0)}
    marks.begin()
    for _ in range(300):
        for name, call in calls.items():
            start_ns = time.perf_counter_ns()
            call(stream.cuda_stream)
            took[name].append(time.perf_counter_ns() - start_ns)
            stream.synchronize()
    print({name: statistics.median(times) for name, times in took.items()}, "ns")
    assert statistics.median(took["mark"]) < statistics.median(took["stamp"])


def test_a_graph_captured_meanwhile_is_whole() -> None:
    """Though the thread looks, and reads the timer, over and over while it is captured."""
    import torch

    from kvtrace.probes.device.cuda_events import EventRing
    from kvtrace.probes.device.drain import WindowDrain
    from kvtrace.probes.device.drain_thread import DrainSchedule
    from kvtrace.probes.device.graph_timestamps import GraphTimestamps

    counted, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    notes, marks, steps = Notes(), EventRing(), 0
    drain = WindowDrain(GraphTimestamps(1), marks, notes, 1)  # type: ignore[arg-type]
    drain.schedule = DrainSchedule(0.1)
    launches = [marks.mark(place) for place in range(4)]
    drain.start()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="global"):
        counted += 1
        before, until = len(notes.clocks), time.monotonic() + 30
        while (len(notes.clocks) < before + 3 or notes.windows < 2 * steps) and time.monotonic() < until:
            if notes.windows == 2 * steps:
                marks.begin()
                for launch in launches:
                    launch(other.cuda_stream)
                assert marks.end(steps)
                steps += 1
            drain.schedule.enqueued()
            time.sleep(0.001)
        counted += 1
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    drain.finish(5)
    print(steps, "steps,", notes.windows, "windows,", len(notes.clocks) - before, "readings during the capture")
    assert counted.item() == 6
    assert notes.failures == []
    assert (notes.windows, steps > 10, len(notes.clocks) >= before + 3) == (2 * steps, True, True)
