"""Passes are read as they were marked, over turns of the ring; those without room are lost whole, and counted."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.probes.device import cuda
from kvtrace.probes.device.cuda_events import EventRing, Taken
from kvtrace.probes.device.drain import WindowDrain
from kvtrace.probes.device.layers import LayerRecorder
from kvtrace.probes.device.levels import DeviceRecorder
from kvtrace.probes.engine import STEP_ATTRIBUTE

STREAM = (1 << 63) + 7  # handles are addresses
SINCE, SINCE_NS = 1 << 40, 5_000_000_000


class Driver:
    """Stands for CUDA's: the GPU comes to events when it is told to, one more us after another."""

    def __init__(self) -> None:
        self.error = 0
        self.recorded = 0
        self.streams: list[int] = []
        self.reached: list[int] = []  # when the GPU came to each, in ns from SINCE
        self._latest: dict[int, int] = {SINCE: -1}
        handle, word = ctypes.c_void_p, ctypes.c_uint
        self._functions = {
            "cuEventCreate": ctypes.CFUNCTYPE(ctypes.c_int, handle, word)(self._create),
            "cuEventRecord": ctypes.CFUNCTYPE(ctypes.c_int, handle, handle)(self._record),
            "cuEventElapsedTime": ctypes.CFUNCTYPE(ctypes.c_int, handle, handle, handle)(self._elapsed),
        }

    def entry(self, name: str) -> int:
        return ctypes.cast(self._functions[name], ctypes.c_void_p).value or 0

    def run(self, events: int) -> None:
        """The GPU goes on by so many."""
        for _ in range(min(events, self.recorded - len(self.reached))):
            self.reached.append(1000 * (len(self.reached) - 20))  # at first before SINCE

    def _create(self, event: int, flags: int) -> int:
        ctypes.c_uint64.from_address(event).value = (1 << 63) + event
        return 0

    def _record(self, event: int, stream: int | None) -> int:
        self.streams.append(stream or 0)
        self._latest[event] = self.recorded
        self.recorded += 1
        return self.error

    def _elapsed(self, out: int, since: int, event: int) -> int:
        at = [0 if number < 0 else self._time(number) for number in (self._latest[since], self._latest[event])]
        if None in at:
            return cuda.NOT_READY
        ctypes.c_float.from_address(out).value = (at[1] - at[0]) / 1e6
        return 0

    def _time(self, number: int) -> Any:
        return self.reached[number] if number < len(self.reached) else None


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(cuda, "entry", made.entry)
    return made


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 3), max_size=12),  # marks of a pass, by place
            st.booleans(),  # whether it ends, or raises
            st.integers(0, 30),  # how far the GPU goes then
        ),
        max_size=25,
    ),
    st.integers(1, 4),
)
def test_passes_are_taken_as_they_were_marked(passes: list[tuple[list[int], bool, int]], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        driver, ring = Driver(), 16
        patch.setattr(cuda, "entry", driver.entry)
        marks = EventRing(ring)
        stamps = [marks.mark(place) for place in range(4)]
        waiting: list[tuple[int, list[int], int]] = []
        lost = 0

        def take() -> None:
            found = []
            while taken := marks.take(SINCE, SINCE_NS, most):
                assert len(taken.steps) <= most
                for row, step in enumerate(taken.steps):
                    its = taken.rows == row
                    found.append((step, list(taken.places[its]), list(taken.times_ns[its])))
            through = [pass_ for pass_ in waiting if pass_[2] + len(pass_[1]) <= len(driver.reached)]
            assert found == [
                (step, marked, [SINCE_NS + time for time in driver.reached[first : first + len(marked)]])
                for step, marked, first in through
            ]
            del waiting[: len(through)]

        for step, (marked, ends, further) in enumerate(passes):
            room = ring - sum(len(others) for _, others, _ in waiting)
            marks.begin()
            first = driver.recorded
            for place in marked:
                stamps[place](STREAM)
            assert driver.recorded - first == min(len(marked), room)
            if ends:
                assert marks.end(step) is bool(marked)
                stamps[0](STREAM)  # a draft model's
                assert driver.recorded - first == min(len(marked), room)
                if len(marked) > room:
                    lost += 1
                elif marked:
                    waiting.append((step, marked, first))
            assert marks.lost == lost
            driver.run(further)
            take()
        driver.run(driver.recorded)
        take()
        assert waiting == []
        assert set(driver.streams) <= {STREAM}


def test_a_pass_without_marks_that_was_left_is_not_lost(driver: Driver) -> None:
    marks = EventRing(16)
    marks.begin()
    marks.mark(3)(STREAM)
    assert marks.end(1)
    marks.begin()
    marks.leave()
    assert not marks.end(2)
    assert marks.lost == 0


def test_what_the_driver_refuses_is_an_exception(driver: Driver) -> None:
    marks = EventRing(16)
    mark = marks.mark(3)
    mark(STREAM)  # no pass
    assert driver.recorded == 0
    marks.begin()
    driver.error = 700
    with pytest.raises(RuntimeError, match="700"):
        mark(STREAM)


class Implementation:
    """Attention implementation that vLLM calls in each layer."""

    def do_kv_cache_update(self, slots: int) -> int:
        return slots

    def forward(self, query: int) -> float:
        return 1 / query


def recorder(streams: list[int]) -> tuple[Any, list[dict[str, Any]]]:
    """A layer recorder with marks, in an engine whose passes run on these streams, and what it says."""
    said: list[dict[str, Any]] = []
    made: Any = LayerRecorder(SimpleNamespace(note=lambda kind, **facts: said.append(facts)))  # type: ignore[arg-type]
    made._event_ring = EventRing(64)
    made._timestamps = SimpleNamespace(
        stamp=lambda layer, place, first=False: lambda stream: None,
        clear=lambda stream: None,
        publish=lambda *step: None,
    )
    made._drain = SimpleNamespace(schedule=SimpleNamespace(enqueued=lambda: None))
    made._stream, made._capturing = lambda: streams[0], lambda: False
    return made, said


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("other", [STREAM + 8, 0])  # 0: CUDA's default stream
def test_calls_are_marked_on_the_stream_of_their_pass(driver: Driver, in_pieces: bool, other: int) -> None:
    streams = [STREAM, other]
    made, said = recorder(streams)
    implementation = Implementation()
    made._wrap(5, implementation, in_graphs=True)
    made.turn(in_pieces)
    for step in (1, 2):
        made.begin(step, 7)
        assert implementation.do_kv_cache_update(slots=3) == 3
        assert implementation.forward(2) == 0.5
        made.end()
        implementation.forward(2)  # a draft model's
        streams.pop(0)
        streams.append(STREAM)
    driver.run(8)
    taken = made._event_ring.take(SINCE, SINCE_NS, 9)
    assert taken.steps.tolist() == [1, 2]
    assert taken.places.tolist() == [20, 21, 22, 23] * 2
    assert driver.streams == [STREAM] * 4 + [other] * 4
    assert said == []


@pytest.mark.parametrize("in_pieces", [False, True])
def test_an_event_that_fails_is_told_of_once_and_costs_the_engine_nothing(driver: Driver, in_pieces: bool) -> None:
    made, said = recorder([STREAM])
    implementation = Implementation()
    made._wrap(5, implementation, in_graphs=True)
    made.turn(in_pieces)
    made.begin(1, 7)
    with pytest.raises(ZeroDivisionError):  # the engine's own
        implementation.forward(0)
    assert (said, driver.recorded) == ([], 1)
    driver.error = 700
    assert implementation.do_kv_cache_update(3) == 3
    assert implementation.forward(2) == 0.5
    made.end()
    assert [facts["state"] for facts in said] == ["stopped"]
    assert "700" in said[0]["detail"]
    assert made._event_ring.take(SINCE, SINCE_NS, 9) is None


PASSES = st.tuples(
    st.sampled_from(["pass", "pass", "pass", "pass", "dummy", "empty", "unmarked", "raises"]),
    st.lists(st.integers(0, 3), max_size=4),  # marks; none where a graph has stamps
    st.sampled_from(["", "", "", "other", "stop"]),  # what happens then
)


@settings(max_examples=150)
@given(st.lists(PASSES, max_size=20), st.booleans())
def test_passes_around_which_little_is_to_do_are_those_around_which_python_does_it(
    passes: list[tuple[str, list[int], str]], drafts: bool
) -> None:
    """Compiled, or all of it."""
    with pytest.MonkeyPatch.context() as patch:
        driver = Driver()
        patch.setattr(cuda, "entry", driver.entry)
        logs = []
        for quick in (False, True):
            log: list[Any] = []
            made, _ = recorder([STREAM])
            made._timestamps.clear = lambda stream, log=log: log.append("clear")
            made._timestamps.publish = lambda step, stream, log=log: log.append(step)
            made._drain, made._event_ring.state.ready = (
                SimpleNamespace(schedule=SimpleNamespace(enqueued=lambda: None)),
                True,
            )
            made._event_ring.state.always_stale = drafts
            device: Any = DeviceRecorder(None, "layer")  # type: ignore[arg-type]
            device._active = made
            begin, end = device.around() if quick else (device.begin, device.end)
            stamps = [made._event_ring.mark(place) for place in range(4)]
            for step, (what, marked, then) in enumerate(passes, 1):
                tokens = 0 if what == "empty" else 9
                output = SimpleNamespace(total_num_scheduled_tokens=tokens)
                if what != "unmarked":
                    setattr(output, STEP_ATTRIBUTE, (7, step))
                begin(step, what == "dummy", output)
                for place in marked:
                    stamps[place](STREAM)
                if what not in ("dummy", "raises", "unmarked"):
                    end(tokens)
                if then == "other":
                    device.other()
                elif then == "stop":
                    made._stop(RuntimeError())
            driver.run(driver.recorded)
            taken = made._event_ring.take(SINCE, SINCE_NS, 99)
            log.append(taken and (taken.steps.tolist(), taken.rows.tolist(), taken.places.tolist()))
            logs.append(log)
    assert logs[0] == logs[1]


def test_the_drain_hears_of_marked_passes(driver: Driver) -> None:
    made, _ = recorder([STREAM])
    heard: list[int] = []
    made._drain, made._event_ring.state.ready = (
        SimpleNamespace(schedule=SimpleNamespace(enqueued=lambda: heard.append(1))),
        True,
    )
    device: Any = DeviceRecorder(None, "layer")  # type: ignore[arg-type]
    device._active = made
    begin, end = device.around()
    mark = made._event_ring.mark(3)
    for step in (1, 2):
        begin(1, False, SimpleNamespace(total_num_scheduled_tokens=9, **{STEP_ATTRIBUTE: (7, step)}))
        mark(STREAM)
        end(9)
        assert heard


def test_steps_windows_of_their_marks() -> None:
    """Two layers: one attended to in two calls, one that was written but not attended to. Then a step of the second."""
    drain = SimpleNamespace(_timestamps=SimpleNamespace(words=1 + 4 * 2))
    places, times = numpy.array([0, 1, 2, 3, 2, 3, 4, 5, 7, 6, 7], numpy.uint32), numpy.arange(10, 120, 10)
    taken = Taken([9, 12], numpy.repeat([0, 1], [9, 2]), places, times)
    find: Any = WindowDrain._marked
    assert find(drain, taken).tolist() == [[9, 10, 20, 30, 60, 70, 80, 0, 0], [12, 0, 0, 0, 0, 0, 0, 100, 110]]
