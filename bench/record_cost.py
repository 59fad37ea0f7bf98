"""What one host record costs: clock reading, packing into the mapped segment, and segment changes, amortised.

python bench/record_cost.py [RECORDS]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from kvtrace.capture import Recorder
from kvtrace.events import BLOCK_EVENT, STEP_REQUEST, STEP_SCHEDULE, TIME


def main(records: int = 1_000_000, repeats: int = 5) -> None:
    now = time.monotonic_ns
    print(f"{'record':16} {'bytes':>6} {'ns, median':>11} {'ns, worst':>10}")
    for event in (BLOCK_EVENT, STEP_REQUEST, STEP_SCHEDULE):
        values = [1] * len(event.fields)
        timed = event.fields[0].type is TIME
        times = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                emit = Recorder(Path(folder)).stream(event)
                start = time.perf_counter_ns()
                for _ in range(records):
                    moment = now()
                    if timed:
                        values[0] = moment
                    emit(*values)
                times.append((time.perf_counter_ns() - start) / records)
        print(f"{event.name:16} {event.struct.size:6} {statistics.median(times):11.0f} {max(times):10.0f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
