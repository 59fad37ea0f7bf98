"""A flush of the profiler's buffers at the end of a process.

Nsight Systems hands over CUPTI's buffers as they fill, and the last ones when C's exit handlers run. Children of
multiprocessing, as vLLM's engines and workers are, end without those: the last steps would be missing from the profile.
vLLM gives them a few seconds to end, and under a profiler they often take longer and are killed. So the buffers are
flushed when vLLM begins to shut a process down, too.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from kvtrace.capture.recorder import Recorder
from kvtrace.probes.device.at_exit import at_end

_FORCED = 1
"""CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: buffers that are not full, too."""


def flush_at_end(recorder: Recorder) -> None:
    """Flush CUPTI's buffers when the process ends, and note each library's answer in the journal."""
    at_end(lambda: flush(recorder))


def flush(recorder: Recorder) -> None:
    """Flush CUPTI's buffers now."""
    try:
        for path in _libraries():  # the profiler's own, and perhaps one that came with torch, which refuses
            code = ctypes.CDLL(path).cuptiActivityFlushAll(_FORCED)
            recorder.note("profiler_flush", library=Path(path).name, code=code)
    except Exception as error:  # the process ends: there is nothing to save but its end
        recorder.note("profiler_flush", detail=f"{type(error).__name__}: {error}")


def _libraries() -> list[str]:
    with Path("/proc/self/maps").open() as maps:
        mapped = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "/libcupti." in line}
    return sorted(mapped)
