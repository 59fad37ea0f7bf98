"""The place of a run directory, and the machine's clocks."""

from __future__ import annotations

import contextlib
import ctypes
import io
import re
import shutil
import tempfile
import time
from pathlib import Path

from kvtrace.doctor.check import Check, State
from kvtrace.errors import KvtraceError
from kvtrace.events import STEP_UPDATE
from kvtrace.format import layout
from kvtrace.format.manifest import Manifest
from kvtrace.format.reader import ProcessRecording, open_recording

_LITTLE_BYTES = 1 << 30
_CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_TIMEX_BYTES = 512  # more than `struct timex` has anywhere
_UNSYNCHRONISED = 5


def check_place(place: Path) -> list[Check]:
    """Record there: hooks are made, a record is written by the compiled part and read back, and all is removed.

    Args:
        place: A run directory; it need not exist.
    """
    parent = place.absolute()
    while not parent.exists():
        parent = parent.parent
    try:
        free_bytes = shutil.disk_usage(parent).free
        with tempfile.TemporaryDirectory(prefix=".kvtrace-doctor-", dir=parent) as folder:
            recording = _recording(Path(folder))
    except OSError as error:
        why = f"{place} cannot be written: {error.strerror or type(error).__name__}. Use -o to record in another place"
        return [Check("run directory", State.problem, why)]
    except KvtraceError as error:
        return [Check("recorder", State.problem, str(error))]
    space = f"{free_bytes / 1e9:,.1f} GB free in {place}"
    facts = {"free_bytes": free_bytes}
    if free_bytes < _LITTLE_BYTES:
        return [recording, Check("run directory", State.note, f"only {space}", facts=facts)]
    return [recording, Check("run directory", State.ok, space, facts=facts)]


def _recording(run_dir: Path) -> Check:
    """Record into a run directory.

    Raises:
        KvtraceError: There is no compiled part, or what was written cannot be read.
    """
    from kvtrace.capture.recorder import Recorder
    from kvtrace.probes import plugin
    from kvtrace.probes.hooks import Patches

    Manifest([], time.time_ns()).write(run_dir)
    with contextlib.redirect_stderr(io.StringIO()):  # what a recorder says in an engine's log
        recorder = Recorder(run_dir)
        plugin.hooks(recorder, Patches(lambda *_: None), {layout.NVTX_VARIABLE: "1"})
        recorder.stream(STEP_UPDATE)(*(0 for _ in STEP_UPDATE.fields))
    if recorder.stopped:
        return Check("recorder", State.problem, re.sub(rf"{layout.PROCESSES}/\S+", layout.PROCESSES, recorder.stopped))
    [process] = open_recording(run_dir).processes
    if not _records(process):
        return Check("recorder", State.problem, "a record was written and could not be read back")
    text = "the compiled part loads; a record was written and read back"
    failed = tuple(detail for state, detail in process.hooks.values() if state == "disabled")
    if failed:
        return Check("recorder", State.note, "the compiled part loads, but it is of another kvtrace", failed)
    return Check("recorder", State.ok, text)


def _records(process: ProcessRecording) -> int:
    return sum(segment.count()[0] for segments in process.segments().values() for segment in segments)


def check_clocks() -> Check:
    """Tell the kernel's clock source, and if NTP or PTP keeps the time."""
    try:
        source = _CLOCK_SOURCE.read_text().strip()
    except OSError:
        source = "unknown"
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    facts = {"source": source, "synchronised": None if state < 0 else state != _UNSYNCHRONISED}
    if state == _UNSYNCHRONISED:
        text = f"source {source}; not synchronised, which matters where several hosts record"
    else:
        text = f"source {source}" + ("; synchronised" if state >= 0 else "")
    return Check("clocks", State.ok, text, facts=facts)
