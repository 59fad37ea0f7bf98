"""Measure what draining tiles costs the engine's thread: both run Python, and one waits for the other. No GPU.

    python -m bench.drain_cost

A thread works as an engine does, in Python and small tensor operations, about 9 ms a step, and sleeps until 13 ms are
over. A quarter into the work it closes a step, which the drain copies from a ring in the host's memory into a file:
nothing, or 5.6 MB as `tile` records at 256 sequences. Milliseconds of work a step, medians of 150, alone and beside
the drain in turns; ratios to alone. Alone, steps are closed in a ring that nobody drains: what closes them here is
Python, whose work is 2% slower behind it. On a GPU the copies are the device's; what Python costs is the same.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

import torch

from kvtrace.capture.recorder import Recorder
from kvtrace.probes.device.timer import CALIBRATE_SECONDS
from tests.probes.tiles.host_drain import Drain, Ring

STEPS, ROUNDS, WORK_S, STEP_S = 150, 5, 0.009, 0.013
LOADS = {"a step of nothing": (0, 0, 0), "a step of 5.6 MB": (65_536, 2_000_000, 0)}
"""Programs, places of tiles, cache writes."""
CAPACITIES = 1 << 20, 1 << 25, 16
NUMBERS = range(200)
TENSOR = torch.zeros(64)


def work(pieces: int) -> None:
    for _ in range(pieces):
        _ = {number: number + 1 for number in NUMBERS}
        TENSOR.add_(1.0)
        _ = TENSOR[3:9]


def pieces_of_a_step() -> int:
    work(2000)
    began = time.perf_counter()
    work(500)
    return int(500 * WORK_S / (time.perf_counter() - began))


def steps_ms(pieces: int, counts: tuple[int, int, int] | None) -> list[float]:
    """Run steps; ms of work of each. `counts`: what each records; None: nothing is drained."""
    ring, took = Ring(CAPACITIES), []
    closes = ring.closes if counts is not None else Ring(CAPACITIES).closes
    with tempfile.TemporaryDirectory() as folder:
        drain = Drain(Recorder(Path(folder)), ring)

        def follow() -> None:
            while drain.wait():
                drain._timer.due_ns = time.monotonic_ns() + round(1e9 * CALIBRATE_SECONDS)
                drain.look()

        thread = threading.Thread(target=follow)
        thread.start()
        for number in range(STEPS):
            began = time.perf_counter()
            work(pieces // 4)
            closes(number + 1, counts or (0, 0, 0))
            work(pieces - pieces // 4)
            worked = time.perf_counter() - began
            took.append(1e3 * worked)
            time.sleep(max(0.0, STEP_S - worked))
        drain.end()
        thread.join()
        drain.look()
        drain.close()
        assert counts is None or drain.state.recorded == STEPS, drain.state.recorded
    return took


def main() -> None:
    torch.set_num_threads(1)
    pieces = pieces_of_a_step()
    alone, beside = [], {name: [] for name in LOADS}
    for _ in range(ROUNDS):
        alone.append(statistics.median(steps_ms(pieces, None)))
        for name, counts in LOADS.items():
            beside[name].append(statistics.median(steps_ms(pieces, counts)))
    print(f"{'alone':20} {statistics.median(alone):6.2f} ms of work a step, {os.cpu_count()} cores")
    for name, found in beside.items():
        ratios = [value / base for value, base in zip(found, alone, strict=True)]
        spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"
        print(f"{name:20} {statistics.median(found):6.2f} ms {spread}")


if __name__ == "__main__":
    main()
