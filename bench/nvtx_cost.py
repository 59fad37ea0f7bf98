"""Cost of kvtrace's NVTX ranges, a pair (begin and end), less the loop around it.

python bench/nvtx_cost.py [PAIRS]

Rounds of ranges alternate with rounds of an empty loop. First with no profiler, as after `kvtrace record --nvtx`; then
with one that is there but wants none of NVTX's calls (a library of three lines, made by `cc`), which leaves the cost of
calling NVTX from Python.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROUNDS = 15
DEAF = "int InitializeInjectionNvtx2(void *export_table) { (void)export_table; return 1; }\n"


def empty(count: int, now_ns: int, _: Any, __: Any) -> None:
    for _step in range(count):
        pass


def steps(count: int, now_ns: int, ranges: Any, engine: Any) -> None:
    for step in range(count):
        engine.step = step
        ranges.begin_step(engine, now_ns)
        ranges.end_step(engine)


def forwards(count: int, now_ns: int, ranges: Any, _: Any) -> None:
    for step in range(count):
        ranges.begin_forward(step, now_ns)
        ranges.end_forward()


def measure(count: int) -> None:
    from kvtrace.capture.recorder import Recorder
    from kvtrace.probes.nvtx import Ranges

    with tempfile.TemporaryDirectory() as folder:
        ranges = Ranges(Recorder(Path(folder)))
        engine = SimpleNamespace(step=0, in_range=False)
        arguments = count, time.monotonic_ns(), ranges, engine
        for name, pairs in (("step", steps), ("forward", forwards)):
            pairs(1000, *arguments[1:])
            costs = [(timed(pairs, arguments) - timed(empty, arguments)) / count for _ in range(ROUNDS)]
            print(f"{name:8} {statistics.median(costs):6.0f} {min(costs):6.0f} {max(costs):6.0f}", flush=True)


def timed(function: Callable[..., None], arguments: tuple[Any, ...]) -> int:
    start = time.perf_counter_ns()
    function(*arguments)
    return time.perf_counter_ns() - start


def main(count: int = 200_000) -> None:
    print(f"ns a pair, of {ROUNDS} rounds: median, lowest, highest\nno profiler:", flush=True)
    measure(count)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "deaf.so"
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"]
        subprocess.run(command, input=DEAF, text=True, check=True)
        print("a profiler that wants no calls:", flush=True)
        environment = {**os.environ, "NVTX_INJECTION64_PATH": str(library)}
        subprocess.run([sys.executable, __file__, "--measure", str(count)], env=environment, check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(int(sys.argv[2]))
    else:
        main(*map(int, sys.argv[1:]))
