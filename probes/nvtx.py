"""NVTX ranges and marks in domain `kvtrace`, for a profiler that listens, so that its timeline knows kvtrace's steps.

Push/pop ranges, payload = step: `step` (from `schedule` to the end of the engine's iteration), `forward` and `sample`
(the worker's calls). Marks: `preemption` (payload = step), `eviction` (blocks evicted), `offload` (blocks copied,
negative towards the GPU) and `clock` (CLOCK_MONOTONIC ns, read right before), once a second and once at the start.

Nothing is imported and nothing called before a process has something to say, so that helpers stay out of profiles.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from kvtrace.capture.recorder import Recorder
from kvtrace.format.layout import NVTX_VARIABLE
from kvtrace.probes.cupti import flush, flush_at_end, flush_in_pauses
from kvtrace.probes.engine import Engine

DOMAIN = "kvtrace"
CLOCK_INTERVAL_NS = 1_000_000_000
_NEVER = 1 << 62
_COLORS = {"step": "blue", "forward": "green", "sample": "purple", "preemption": "red", "eviction": "yellow"}
_SIGNS = ("NVTX_INJECTION64_PATH", "QUADD_INJECTION_PROXY", "NSYS_SESSION_TEMP_DIR")
"""Set in the processes of a profiler: the first is how NVTX finds one, the others are of Nsight Systems."""


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Tell if NVTX ranges are wanted: `kvtrace record` was told so, or a profiler seems to listen."""
    return environment.get(NVTX_VARIABLE) == "1" or any(environment.get(name) for name in _SIGNS)


class Attributes(Protocol):
    """The attributes of a range or mark, as nvtx keeps them; only the payload changes."""

    payload: int


class Ranges:
    """The ranges and marks of this process. Where no profiler listens, `off` is set and calls return at once."""

    _step: Attributes
    _forward: Attributes
    _sample: Attributes
    _preemption: Attributes
    _eviction: Attributes
    _offload: Attributes
    _clock: Attributes
    _push: Callable[[Attributes], None]
    _pop: Callable[[], None]
    _mark: Callable[[Attributes], None]

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._close()
        os.register_at_fork(after_in_child=self._close)

    def _close(self) -> None:
        """Begin anew, as in a forked child: a profiler listens to a process of its own accord."""
        self._lock = threading.Lock()
        self.off = self._open = False
        self._clock_due_ns = 0
        self._worker_step = 0  # of the last forward pass
        self._in_forward = False
        self._calls = 0

    def start(self) -> None:
        """Begin in a process that will have steps or forward passes, so that the first one need not wait for it."""
        if not self._open:
            self._tell_time()

    def begin_step(self, engine: Engine, now_ns: int) -> None:
        """Enter the range of the step that is to be scheduled."""
        if now_ns >= self._clock_due_ns:
            self._tell_time()
        if self.off:
            return
        self._calls += 1
        if engine.in_range:  # the end of the iteration was not seen
            self._pop()
        attributes = self._step
        attributes.payload = engine.step
        self._push(attributes)
        engine.in_range = True

    def scheduled(self, engine: Engine) -> None:
        """Mark the evictions since the last such mark: nearly always those of this step's allocations."""
        if engine.pool.evicted and self._open and not self.off:
            self._eviction.payload = engine.pool.evicted
            self._mark(self._eviction)
            engine.pool.evicted = 0

    def end_step(self, engine: Engine) -> None:
        """Leave the step's range, if it was entered in this iteration."""
        if engine.in_range:
            engine.in_range = False
            self._pop()

    def begin_forward(self, step: int, now_ns: int) -> None:
        """Enter the range of a forward pass. `end_forward` must follow."""
        if now_ns >= self._clock_due_ns:
            self._tell_time()
        if self.off:
            return
        self._calls += 1
        attributes = self._forward
        attributes.payload = self._worker_step = step
        self._push(attributes)
        self._in_forward = True

    def end_forward(self) -> None:
        """Leave the range of the forward pass."""
        if self._in_forward:
            self._in_forward = False
            self._pop()

    def begin_sample(self) -> bool:
        """Enter the range of a sampling, of the step of the last forward pass; False if there was none."""
        if self.off or not self._worker_step:
            return False
        self._sample.payload = self._worker_step
        self._push(self._sample)
        return True

    def end_sample(self) -> None:
        """Leave the range of a sampling, after a `begin_sample` that was true."""
        self._pop()

    def preempted(self, step: int) -> None:
        """Mark a preemption."""
        if self._open and not self.off:
            self._preemption.payload = step
            self._mark(self._preemption)

    def offloaded(self, blocks: int) -> None:
        """Mark a copy of blocks between the GPU and an offload tier; negative: towards the GPU. From any thread."""
        if time.monotonic_ns() >= self._clock_due_ns:
            self._tell_time()
        if self.off:
            return
        with self._lock:
            self._offload.payload = blocks
            self._mark(self._offload)

    def flush(self) -> None:
        """Have the profiler hand over what it holds: the process is being shut down."""
        if self._open and not self.off:
            flush(self._recorder)

    def _tell_time(self) -> None:
        with self._lock:
            if not self._open:
                self._begin()
            if self.off:
                self._clock_due_ns = _NEVER
                return
            self._clock.payload = now_ns = time.monotonic_ns()
            self._mark(self._clock)
            self._clock_due_ns = now_ns + CLOCK_INTERVAL_NS

    def _begin(self) -> None:
        """Register the domain and its strings: NVTX loads the profiler's library now if it has not yet."""
        self._open = True
        self.off = True
        try:
            import nvtx

            domain = nvtx.get_domain(DOMAIN)
            for name in ("step", "forward", "sample", "preemption", "eviction", "offload", "clock"):
                setattr(self, f"_{name}", domain.get_event_attributes(message=name, color=_COLORS.get(name)))
            self._push, self._pop, self._mark = domain.push_range, domain.pop_range, domain.mark
            self.off = self._step is None or not nvtx.enabled()  # nvtx gives no attributes when nobody listens
        except ImportError as error:
            self._recorder.note("nvtx", state="absent", detail=f"the package nvtx cannot be imported ({error})")
        except Exception as error:
            self._recorder.note("nvtx", state="absent", detail=f"{type(error).__name__}: {error}")
        else:
            self._recorder.note("nvtx", state="unheard" if self.off else "on")
            if not self.off:
                flush_at_end(self._recorder)
                flush_in_pauses(lambda: self._calls, self._recorder)
