"""The thread that copies layers' windows from the device to the capture log, on a stream of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.capture.recorder import Recorder
from kvtrace.events import KV_WINDOW, WindowKind
from kvtrace.probes.device.cuda_events import EventRing, Taken
from kvtrace.probes.device.drain_thread import Drain, DrainSchedule
from kvtrace.probes.device.graph_timestamps import ATTENTION_START, PLACES, GraphTimestamps

if TYPE_CHECKING:
    from numpy import dtype, int64, void
    from numpy.typing import NDArray
    from torch import Tensor

LOOK_SECONDS = 0.5
"""Some fifty or hundred steps are taken home at once: it takes hardly longer than one."""

_AT_ONCE = 256


class WindowDrain(Drain):
    """Copies one device's windows: timestamps of graphs, and those of CUDA events.

    A step that is overwritten before it could be copied is counted as dropped, whole.

    Attributes:
        schedule: Is to be told of steps.
    """

    def __init__(self, timestamps: GraphTimestamps, ring: EventRing, recorder: Recorder, engine_pid: int) -> None:
        super().__init__("kvtrace-drain", recorder)
        import numpy
        import torch

        self.schedule = DrainSchedule(LOOK_SECONDS)
        self._timestamps = timestamps
        self._event_ring = ring
        self._lost = 0
        self._drained = 0
        with torch.inference_mode(False):
            self._pinned = torch.empty((_AT_ONCE, timestamps.words), dtype=torch.int64, pin_memory=True)
            self._count = torch.zeros(1, dtype=torch.int64, pin_memory=True)
        self._windows = 2 * timestamps.layers
        self._rows = numpy.zeros((_AT_ONCE, self._windows), dtype=_record_type())
        self._rows["engine_id"] = engine_pid
        self._rows["layer"] = numpy.arange(self._windows) // 2
        self._rows["kind"] = numpy.tile([WindowKind.write, WindowKind.attention], timestamps.layers)
        self._rows["observed"] = True

    def wait(self) -> bool:
        """Wait until steps have been enqueued."""
        return self.schedule.wait()

    def end(self) -> None:
        """End the waiting."""
        self.schedule.end()

    def look(self) -> None:
        """Write the windows of new steps to the log."""
        self._look_at_ring()
        while taken := self._event_ring.take(self._timer.event, self._timer.event_ns, _AT_ONCE):
            self._write(self._marked(taken))
        lost = self._event_ring.lost  # read once: the engine's thread counts
        self._count_lost(lost - self._lost)
        self._lost = lost

    def _count_lost(self, steps: int) -> None:
        if steps:
            self._recorder.drop(KV_WINDOW, steps * self._windows)
            self._recorder.note("device", state="overrun", dropped_steps=steps)

    def _marked(self, taken: Taken) -> NDArray[int64]:
        """Arrange CUDA events' times as steps of the ring. An attention's first start counts; of all else the last."""
        import numpy

        found = numpy.zeros((len(taken.steps), self._timestamps.words), numpy.int64)
        found[:, 0] = taken.steps
        found[taken.rows, 1 + taken.places] = taken.times_ns
        starts = numpy.flatnonzero(taken.places % PLACES == ATTENTION_START)[::-1]
        found[taken.rows[starts], 1 + taken.places[starts]] = taken.times_ns[starts]
        windows = found[:, 1:].reshape(-1, 2)  # a copy
        windows[~windows.all(axis=1)] = 0
        found[:, 1:] = windows.reshape(len(found), -1)
        return found

    def _look_at_ring(self) -> None:
        self._fetch(self._count, self._timestamps.appended)
        published, slots = int(self._count[0]), self._timestamps.slots
        if published - self._drained > slots - slots // 8:  # what is older may be overwritten while it is copied
            kept = published - slots // 2
            self._count_lost(kept - self._drained)
            self._drained = kept
        while self._drained < published:
            start = self._drained % slots
            count = min(published - self._drained, slots - start, _AT_ONCE)
            self._fetch(self._pinned[:count], self._timestamps.ring[start : start + count])
            self._write(self._pinned[:count].numpy())
            self._drained += count

    def _fetch(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source, non_blocking=True)
        self._stream.synchronize()

    def _write(self, steps: NDArray[int64]) -> None:
        """Write the windows of some steps to the log."""
        times = steps[:, 1:].reshape(len(steps), self._windows, 2)
        rows = self._rows[: len(steps)]
        rows["step"] = steps[:, :1]
        host = self._timer.clock.host_ns(times)
        rows["start_ns"], rows["end_ns"] = host[..., 0], host[..., 1]
        rows = rows[times[..., 0] > 0]
        if len(rows):  # not steps without tokens alone
            self._recorder.append(KV_WINDOW, rows.view("u1").reshape(len(rows), -1))


def _record_type() -> dtype[void]:
    """Make numpy's type of a `KV_WINDOW` record, with its commit byte last."""
    import numpy

    return numpy.dtype([(field.name, f"<{field.type.code}") for field in KV_WINDOW.fields] + [("whole", "B")])
