"""Cost of one host record: clock reading, packing into the mapped segment, and segment changes, amortised.

Fields are given by name, as the probes do; those of `step_schedule`, which C fills, are not.

    python bench/record_cost.py [RECORDS]

Time of the writing thread's CPU and by the wall. Each record is written without limits and, in turns with that, with
`--keep-last`: there a thread of the recorder ends the segments ten times a second, far more often than anybody would.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from kvtrace.capture.limits import Limits
from kvtrace.capture.recorder import Recorder
from kvtrace.events import BLOCK_EVENT, STEP_REQUEST, STEP_SCHEDULE, TIME, Event

KINDS = {"no limits": Limits(), "--keep-last": Limits(segment_ns=100_000_000, keeps=True, keep_ns=10**9)}
MOST_NAMES = 15
"""Python packs more than that into a dict first."""


def cost(event: Event, limits: Limits, records: int) -> tuple[float, float]:
    """Nanoseconds a record: CPU of this thread, and wall."""
    by_name = len(event.fields) <= MOST_NAMES
    values = ["now()" if field.type is TIME and at == 0 else "1" for at, field in enumerate(event.fields)]
    names = [f"{field.name}=" if by_name else "" for field in event.fields]
    fields = ", ".join(map(str.__add__, names, values))
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder), limits)
        known = {"emit": recorder.stream(event), "now": time.monotonic_ns}
        record = eval(f"lambda: emit({fields})", known)
        cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
        for _ in range(records):
            record()
        found = (time.thread_time_ns() - cpu) / records, (time.perf_counter_ns() - wall) / records
        recorder.stop("measured")
    return found


def main(records: int = 1_000_000, repeats: int = 5) -> None:
    print(f"{'record':16} {'bytes':>6} {'':12} {'CPU ns, median':>15} {'worst':>6} {'wall, median':>16} {'worst':>6}")
    for event in (BLOCK_EVENT, STEP_REQUEST, STEP_SCHEDULE):
        found = {kind: [] for kind in KINDS}
        for _ in range(repeats):
            for kind, limits in KINDS.items():
                found[kind].append(cost(event, limits, records))
        for kind, times in found.items():
            cpu, wall = zip(*times, strict=True)
            print(
                f"{event.name:16} {event.struct.size:6} {kind:12} {statistics.median(cpu):15.0f} {max(cpu):6.0f} "
                f"{statistics.median(wall):16.0f} {max(wall):6.0f}"
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
