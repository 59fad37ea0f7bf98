"""Timestamps of calls outside CUDA graphs: events of the driver's.

To launch a kernel takes the processor 3 to 4 us, and where Python calls attention the step takes that much longer. To
record an event takes about 1 us, and the GPU notes the time as exactly as a kernel would.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kvtrace.capture import _native
from kvtrace.probes.device import cuda
from kvtrace.probes.device.cuda import Events, Launch
from kvtrace.probes.engine import STEP_ATTRIBUTE
from kvtrace.probes.vllm_types import SchedulerOutput

if TYPE_CHECKING:
    from numpy import int64, uint32
    from numpy.typing import NDArray

Begin = Callable[[int, bool, SchedulerOutput], None]
"""Called with when a pass begins (0: a dummy), whether it is a dummy, and the scheduler's output."""
End = Callable[[int], None]
"""Called with a pass's number of tokens."""

RING = 1 << 15
"""Events there are: for 256 steps of 32 layers, of which some fifty are in the ring at a time."""


class Taken(NamedTuple):
    """Passes, and their marks in order: the pass of each, by index, its place and its time."""

    steps: NDArray[int64]
    rows: NDArray[int64]
    places: NDArray[uint32]
    times_ns: NDArray[int64]


class EventRing:
    """A ring of CUDA events that mark places of passes. A pass that finds no room is lost, whole.

    All but `take` is of the engine's thread.

    Args:
        ring: Events.

    Attributes:
        state: What is under way.
        begin: A pass begins; the next marks are its. Those of one that never ended are forgotten.
        leave: What is marked from now on belongs to no pass.
        end: The pass that began last is of this step, and has been enqueued. False: nothing was marked.
        mark: What records an event for a place, if a pass is under way.
    """

    begin: Callable[[], None]
    leave: Callable[[], None]
    end: Callable[[int], bool]
    mark: Callable[[int], Launch]

    def __init__(self, ring: int = RING) -> None:
        self._events = Events(ring)
        self.state = State(stale=True)
        self._ring = ring
        self._places = (ctypes.c_uint32 * ring)()
        self._steps, self._stops = (ctypes.c_int64 * ring)(), (ctypes.c_uint64 * ring)()  # of passes that were kept
        self._taken = 0
        kept = self._events.handles, self._places, self._steps, self._stops, self.state
        handles, places, steps, stops, state = [ctypes.addressof(memory) for memory in kept]
        record = cuda.entry("cuEventRecord")
        self._event_ring = native = _native.EventRing(record, handles, places, steps, stops, state, ring, kept)
        self.begin, self.leave, self.end, self.mark = native.begin, native.leave, native.end, native.mark

    @property
    def lost(self) -> int:
        """Passes so far that found no room."""
        return int(self.state.lost)

    def around(self, begin: Begin, end: End, enqueued: Callable[[], None], interval_ns: int) -> tuple[Begin, End]:
        """Make the calls around passes: compiled code, which calls these where more is to do than to mark.

        Args:
            begin: What Python does when a pass begins.
            end: What it does when one ends, `enqueued` included.
            enqueued: To be called when compiled code has ended one.
            interval_ns: It is not, sooner than this after the last time.
        """
        quick = _native.TimedPasses(self._event_ring, STEP_ATTRIBUTE, begin, end, enqueued, interval_ns)
        return quick.begin, quick.end

    def take(self, since: int, since_ns: int, most: int) -> Taken | None:
        """Passes that the GPU is through with, and forget them.

        Args:
            since: The handle of an event.
            since_ns: Its time.
            most: No more passes than that.
        """
        import numpy

        passes = numpy.arange(self._taken, min(self.state.ended, self._taken + most)) % self._ring
        if not len(passes):
            return None
        first = int(self.state.taken)
        stops = numpy.ctypeslib.as_array(self._stops)[passes].astype(numpy.int64)
        begun = self._events.elapsed_ns(since, first, 1)
        times = self._events.elapsed_ns(self._events.handles[first % self._ring], first, int(stops[-1]) - first)
        stops = stops[stops <= first + len(times)]
        if not len(stops) or not len(begun):
            return None
        marks = numpy.arange(first, stops[-1]) % self._ring
        rows = numpy.repeat(numpy.arange(len(stops)), numpy.diff(stops, prepend=first))
        steps = numpy.ctypeslib.as_array(self._steps)[passes[: len(stops)]]
        places = numpy.ctypeslib.as_array(self._places)[marks]
        self._taken += len(stops)
        self.state.taken = int(stops[-1])
        return Taken(steps, rows, places, since_ns + begun[0] + times[: len(marks)])


class State(ctypes.Structure):
    """State that compiled code reads; `kvtrace/capture/native/cuda_events.h` describes it."""

    next: int
    limit: int
    stop: int
    taken: int
    ended: int
    lost: int
    stream: int
    known: int
    in_pieces: int
    step: int
    stale: int
    always_stale: int
    ready: int
    _fields_ = [(name, ctypes.c_uint64) for name in __annotations__]
