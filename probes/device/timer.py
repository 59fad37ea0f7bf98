"""The GPU's global timer against the host's clock, read while the engine runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kvtrace.capture.recorder import Recorder
from kvtrace.probes.device.cuda import STAMP, Events, Module, count, pointer

if TYPE_CHECKING:
    from numpy import int64
    from numpy.typing import NDArray
    from torch.cuda import Stream

CALIBRATE_SECONDS = 1.0
"""Hosts' clocks drift by 2 to 19 us a second against the GPU's timer; a calibration takes about 0.2 ms of a thread."""

DRIFT_SECONDS = 0.25
"""Calibrations at least so far apart tell the drift, as readings are off by a microsecond. The second comes then."""

LARGEST_DRIFT = 1e-3
"""Linux slews its clock by half of that at most."""

RETRY_SECONDS = 0.1
"""After a calibration in which the GPU was too busy to answer. The offset before stays in use."""

EVENT_WITHIN_NS, EVENT_SECONDS = 5_000, 10.0
"""An event whose time is not known so well does not take the place of one that is, for so long."""

FIRST_EVENT_SECONDS = 0.1
"""Nor is it the first one, for so long: where other processes share the GPU a reading may be that bad."""

FIRST_TRIES = 200
"""Without a first offset nothing can be recorded."""

SOURCE = (
    STAMP
    + r"""
// Answers each number the host writes to `asked` with the global timer; gives up after five milliseconds without one.
extern "C" __global__ void kvt_answer(volatile u64* asked, volatile u64* answers, unsigned int count) {
    for (unsigned int i = 0; i < count; ++i) {
        u64 since = now();
        while (asked[0] <= i)
            if (now() - since > 5000000ULL) return;
        answers[i] = now();
        __threadfence_system();
    }
}
"""
)

_QUESTIONS = 32

_STARTS_WITHIN_NS = 5_000_000
"""Time that the GPU may be too busy to start answering; waited for asleep."""

_ANSWERS_WITHIN_NS = 100_000
"""Once it has started, an answer takes some 3 us. The thread does not sleep then, so others have to wait for it."""


class HostClock:
    """CLOCK_MONOTONIC by the global timer: at a drift from the last calibration on, by the one before.

    Attributes:
        offset_ns: CLOCK_MONOTONIC minus global timer at the last calibration; 0: there was none.
        gpu_ns: The global timer then.
        drift: How much faster CLOCK_MONOTONIC runs; None: not known yet.
    """

    def __init__(self) -> None:
        self.offset_ns = self.gpu_ns = 0
        self.drift: float | None = None
        self._before: tuple[int, int] | None = None  # a calibration that is old enough to tell the drift from

    def calibrate(self, gpu_ns: int, offset_ns: int) -> int:
        """Take a reading of the global timer and its offset; return how far the offset has moved."""
        moved = offset_ns - self.offset_ns if self.offset_ns else 0
        if self._before is None:
            self._before = gpu_ns, offset_ns
        elif gpu_ns - self._before[0] >= DRIFT_SECONDS * 1e9:
            drift = (offset_ns - self._before[1]) / (gpu_ns - self._before[0])
            self.drift = drift if abs(drift) <= LARGEST_DRIFT else 0.0
            self._before = gpu_ns, offset_ns
        self.gpu_ns, self.offset_ns = gpu_ns, offset_ns
        return moved

    def host_ns(self, gpu_ns: NDArray[int64]) -> NDArray[int64]:
        """CLOCK_MONOTONIC of times of the global timer."""
        moved = (gpu_ns - self.gpu_ns) * (self.drift or 0.0)
        return gpu_ns + self.offset_ns + moved.astype(gpu_ns.dtype)


class GpuTimer:
    """Reads the global timer of the current device, now and then.

    Attributes:
        clock: Host times of it.
        event: Handle of an event: those of others count from it.
        event_ns: Its global timer.

    Raises:
        ImportError: CuPy is not installed.
    """

    def __init__(self, recorder: Recorder) -> None:
        import torch

        self.clock = HostClock()
        self._recorder = recorder
        self._due = 0.0
        with torch.inference_mode(False):
            self._asked = torch.zeros(1, dtype=torch.int64, pin_memory=True)
            self._answers = torch.zeros(_QUESTIONS, dtype=torch.int64, pin_memory=True)
            self._between = torch.empty(1, dtype=torch.int64, device=torch.cuda.current_device())
        module = Module(SOURCE)
        self._answer = module.launch(
            "kvt_answer", 1, pointer(self._asked.data_ptr()), pointer(self._answers.data_ptr()), count(_QUESTIONS)
        )
        self._time = module.launch("kvt_stamp", 1, pointer(self._between.data_ptr()))
        self._events = Events(4)
        self._turn = 0
        self.event = self.event_ns = self._event_uncertainty_ns = 0
        self._event_due = 0.0

    @property
    def due_ns(self) -> int:
        """When it is to be kept again, by CLOCK_MONOTONIC."""
        return round(1e9 * self._due)

    def keep(self, stream: Stream) -> None:
        """Calibrate if that is due.

        Args:
            stream: One of the calling thread, best of high priority.

        Raises:
            RuntimeError: The timer could not be read even once.
        """
        now = time.monotonic()
        if now < self._due:
            return
        if not self.event_ns:
            self._event_due = now + FIRST_EVENT_SECONDS
        answered = self._calibrate(stream)
        for _ in range(0 if self.clock.offset_ns else FIRST_TRIES):
            time.sleep(0.005)
            answered = self._calibrate(stream)
            if answered:
                break
        if not self.clock.offset_ns:
            raise RuntimeError("the GPU's timer could not be read")
        again = min(DRIFT_SECONDS, CALIBRATE_SECONDS) if self.clock.drift is None else CALIBRATE_SECONDS
        self._due = time.monotonic() + (again if answered else RETRY_SECONDS)

    def _calibrate(self, stream: Stream) -> bool:
        """Ask the GPU for the time; False if it did not answer."""
        asked, answers = self._asked.numpy(), self._answers.numpy()
        asked[0] = 0
        answers[:] = 0
        self._answer(stream.cuda_stream)
        self._events.record(self._turn, stream.cuda_stream)  # while the GPU asks, so that these three follow at once
        self._time(stream.cuda_stream)
        self._events.record(self._turn + 1, stream.cuda_stream)
        best: tuple[int, int, int] | None = None  # round trip, global timer, offset
        now = time.monotonic_ns
        for index in range(len(answers)):
            before = now()
            asked[0] = index + 1
            if index == 0:
                while not answers[0] and now() - before < _STARTS_WITHIN_NS:
                    time.sleep(20e-6)
            while not answers[index] and now() - before < _ANSWERS_WITHIN_NS:
                pass
            after = now()
            if not answers[index]:
                break
            if index and (best is None or after - before < best[0]):
                gpu_ns = int(answers[index])
                best = after - before, gpu_ns, (before + after) // 2 - gpu_ns
        stream.synchronize()
        if best is None or not self._keep_event():
            return False
        moved = self.clock.calibrate(*best[1:])
        self._recorder.note(
            "gpu_clock",
            offset_ns=self.clock.offset_ns,
            drift_ppb=None if self.clock.drift is None else round(self.clock.drift * 1e9),
            uncertainty_ns=(best[0] + 1) // 2,
            moved_ns=moved,
            event_uncertainty_ns=self._event_uncertainty_ns,
        )
        return True

    def _keep_event(self) -> bool:
        """Count events' times from the first of the two around the last reading; False if there is none yet.

        The reading lies somewhere between those. While the GPU is full they are far apart, and the event before is the
        better one for some time.
        """
        [apart] = self._events.elapsed_ns(self._events.handles[self._turn], self._turn + 1, 1)
        if apart <= 2 * EVENT_WITHIN_NS or time.monotonic() >= self._event_due:
            self._event_uncertainty_ns = (int(apart) + 1) // 2
            self.event, self.event_ns = self._events.handles[self._turn], int(self._between.item()) - int(apart) // 2
            self._event_due = time.monotonic() + EVENT_SECONDS
            self._turn = 2 - self._turn
        return bool(self.event_ns)
