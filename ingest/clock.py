"""One time base: an offset per host turns monotonic readings into UNIX time.

All processes of a host share CLOCK_MONOTONIC, so they share one offset; orders between them stay exact. How well one
offset explains every reading taken is kept as that reading's residual.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from kvtrace.format.reader import Clock, ProcessRecording

STEP_NS, LARGEST_SLEW = 10_000_000, 1e-3
"""Between two readings of a process the realtime clock was stepped if it moved against the monotonic one by more than
this, and this share of the time between them: a clock that is set right smoothly moves less."""


class Reading(NamedTuple):
    """A clock reading and how far the host's offset is from explaining it."""

    process_id: int
    clock: Clock
    offset_ns: int
    residual_ns: int


def host_of(process: ProcessRecording) -> str:
    """Identity of the host's clock: the boot id, or recording and host name where that is not known."""
    boot_id = process.facts.get("boot_id")
    unknown = boot_id in (None, "", "unknown")
    return f"{process.recording} {process.facts.get('host')}" if unknown else str(boot_id)


def readings_of(process: ProcessRecording) -> list[Clock]:
    """Every clock reading a process took: in its journal and in its segments' headers."""
    in_headers = [
        segment.clock for segments in process.segments().values() for segment in segments if segment.clock is not None
    ]
    return sorted((*process.clocks, *in_headers))


def offsets(processes: Iterable[ProcessRecording]) -> dict[str, int]:
    """The offset of each host, ns: from the most certain reading of the first process (they come in order of start)."""
    found: dict[str, int] = {}
    for process in processes:
        best = min(readings_of(process), key=lambda clock: clock.uncertainty_ns)
        found.setdefault(host_of(process), best.realtime_ns - best.monotonic_ns)
    return found


def residuals(process_id: int, process: ProcessRecording, offset_ns: int) -> list[Reading]:
    """Return what the offset leaves unexplained in each reading: steps of the realtime clock, and drift."""
    return [
        Reading(process_id, clock, offset_ns, clock.realtime_ns - clock.monotonic_ns - offset_ns)
        for clock in readings_of(process)
    ]


def steps(readings: Iterable[Reading]) -> list[tuple[Reading, int]]:
    """Steps of the realtime clock between a process's readings: the reading after each, and by how many ns."""
    found = []
    for before, after in pairwise(readings):
        moved = after.residual_ns - before.residual_ns
        if abs(moved) > STEP_NS + LARGEST_SLEW * (after.clock.monotonic_ns - before.clock.monotonic_ns):
            found.append((after, moved))
    return found
