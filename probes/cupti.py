"""A flush of the profiler's buffers at the end of a process.

Nsight Systems hands over CUPTI's buffers as they fill, and the last ones when C's exit handlers run. Children of
multiprocessing, as vLLM's engines and workers are, end without those: the last steps would be missing from the profile.
vLLM gives them a few seconds to end, and under a profiler they often take longer and are killed. So the buffers are
flushed when vLLM begins to shut a process down, and in each pause of its work.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvtrace.capture.recorder import Recorder
from kvtrace.probes.device.at_exit import at_end

_FORCED = 1
"""CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: buffers that are not full, too."""


PAUSE_SECONDS = 0.5
"""A pause is at least so long: a step takes less, and of kernels that run there are no times yet."""


def flush_in_pauses(work: Callable[[], int], recorder: Recorder) -> None:
    """Have a thread flush CUPTI's buffers once in each pause.

    Args:
        work: Counts what has been done; it stands still in a pause.
        recorder: Notes each library's first answer.
    """

    def run() -> None:
        flushed = seen = work()
        said: set[tuple[object, ...]] = set()
        while True:
            time.sleep(PAUSE_SECONDS)
            done = work()
            if done == seen != flushed:
                flushed = done
                flush(recorder, said)
            seen = done

    threading.Thread(target=run, name="kvtrace-profile", daemon=True).start()


def flush_at_end(recorder: Recorder) -> None:
    """Flush CUPTI's buffers when the process ends, and note each library's answer in the journal."""
    at_end(lambda: flush(recorder))


def flush(recorder: Recorder, said: set[tuple[object, ...]] | None = None) -> None:
    """Flush CUPTI's buffers now.

    Args:
        recorder: Notes the libraries' answers.
        said: Answers that are not noted again.
    """

    def note(**facts: Any) -> None:
        if said is None or tuple(facts.values()) not in said:
            recorder.note("profiler_flush", **facts)
        if said is not None:
            said.add(tuple(facts.values()))

    try:
        for path in _libraries():  # the profiler's own, and perhaps one that came with torch, which refuses
            code = ctypes.CDLL(path).cuptiActivityFlushAll(_FORCED)
            note(library=Path(path).name, code=code)
    except Exception as error:  # there is nothing to save but the process
        note(detail=f"{type(error).__name__}: {error}")


def _libraries() -> list[str]:
    with Path("/proc/self/maps").open() as maps:
        mapped = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "/libcupti." in line}
    return sorted(mapped)
