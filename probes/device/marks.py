"""Stamps of calls that no graph captures: events of the driver's.

To launch a kernel takes the processor 3 to 4 us, and where Python calls attention each is one of the step. To record an
event takes 0.8; the GPU writes down the time of its own accord, as exactly as a kernel would.
"""

from __future__ import annotations

import ctypes
from collections import deque
from itertools import islice
from typing import Any, NamedTuple

from kvtrace.probes.device import cuda
from kvtrace.probes.device.cuda import Events, Launch
from kvtrace.stream import compiled

RING = 1 << 14
"""Events there are: for 128 steps of 32 layers, of which some ten or twenty are in the ring at a time."""

_NEXT, _LIMIT = 0, 1
"""Words of the state: the number of the next mark, and how far marks may go; 0: none is wanted."""


class _Pass(NamedTuple):
    step: int
    first: int
    stop: int


class Taken(NamedTuple):
    """Passes, and their marks in order: the pass of each, by index, its place and its time."""

    steps: list[int]
    rows: Any
    places: Any
    times_ns: Any


class Marks:
    """Marks of passes, in a ring of events. A pass that finds no room is lost, whole.

    All but `take` is of the engine's thread.

    Args:
        ring: Events.

    Attributes:
        lost: Passes so far that were.
    """

    def __init__(self, ring: int = RING) -> None:
        self._events = Events(ring)
        self._ring = ring
        self._places = (ctypes.c_uint32 * ring)()
        self._state = (ctypes.c_uint64 * 2)()
        self._stop = self._taken = 0  # of the last pass that has room, and of the last that was taken
        self._passes: deque[_Pass] = deque()
        self.lost = 0

    def mark(self, place: int) -> Launch:
        """What records an event for a place, if a pass is under way."""
        native, record = compiled(), cuda.entry("cuEventRecord")
        if native is not None and record:
            kept = self._events.handles, self._places, self._state
            handles, places, state = (ctypes.addressof(array) for array in kept)
            made: Launch = native.Mark(record, handles, places, state, self._ring, place, kept)
            return made

        def launch(stream: int) -> None:
            number, limit = self._state
            if limit:
                self._state[_NEXT] += 1
                if number < limit:
                    self._places[number % self._ring] = place
                    self._events.record(number % self._ring, stream)

        return launch

    def begin(self) -> None:
        """A pass begins; the next marks are its. Those of one that never ended are forgotten."""
        self._state[_NEXT] = self._stop
        self._state[_LIMIT] = self._taken + self._ring

    def leave(self) -> None:
        """What is marked from now on belongs to no pass."""
        self._state[_LIMIT] = 0

    def end(self, step: int) -> bool:
        """The pass that began last is of `step`, and has been enqueued. False: nothing was marked."""
        stop, limit = self._state
        self._state[_LIMIT] = 0
        if stop == self._stop:
            return False
        if stop > limit:
            self.lost += 1
        else:
            self._passes.append(_Pass(step, self._stop, stop))
            self._stop = stop
        return True

    def take(self, since: int, since_ns: int, most: int) -> Taken | None:
        """Passes that the GPU is through with, and forget them.

        Args:
            since: The handle of an event.
            since_ns: Its time.
            most: No more passes than that.
        """
        import numpy

        passes = list(islice(self._passes, most))
        if not passes:
            return None
        first, stop = passes[0].first, passes[-1].stop
        begun = self._events.elapsed_ns(since, first, 1)
        times = self._events.elapsed_ns(self._events.handles[first % self._ring], first, stop - first)
        passes = [pass_ for pass_ in passes if pass_.stop <= first + len(times)]
        if not passes or not len(begun):
            return None
        numbers = numpy.arange(first, passes[-1].stop)
        rows = numpy.repeat(numpy.arange(len(passes)), [pass_.stop - pass_.first for pass_ in passes])
        places = numpy.ctypeslib.as_array(self._places)[numbers % self._ring]
        for pass_ in passes:
            self._passes.popleft()
            self._taken = pass_.stop
        return Taken([pass_.step for pass_ in passes], rows, places, since_ns + begun[0] + times[: len(numbers)])
