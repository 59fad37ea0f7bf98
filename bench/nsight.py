"""Time and memory of ingesting an Nsight Systems export, beside nsys-ai making its cache of it.

    python bench/nsight.py                                        # generates 5 million kernels first, beside --where
    python bench/nsight.py --export FILE                          # an export of your own
    python bench/nsight.py --peer VENV/bin/nsys-ai --rounds 3     # alternates with the peer, on the same file

nsys-ai 0.3.0 goes into a virtual environment of its own, with duckdb 1.5.5 and its sqlite_scanner extension. Time is
wall and CPU time of a process from start to end, memory its peak; `load` is the machine's before each run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nsight_export import make


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--export", type=Path, help="ingest this export instead of a generated one")
    parser.add_argument("--kernels", type=int, default=5_000_000)
    parser.add_argument("--ranges", type=int, default=110_000)
    parser.add_argument("--where", type=Path, help="directory for the generated export (0.7 GB) and what is made of it")
    parser.add_argument("--peer", type=Path, help="nsys-ai's executable")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.where) as name:
        folder = Path(name)
        export = options.export
        if export is None:
            export = folder / "generated.sqlite"
            make(export, options.kernels, options.ranges)
        print(f"{export.name}: {export.stat().st_size / 1e6:,.0f} MB, {len(os.sched_getaffinity(0))} cores")
        print(f"{'':>8} {'wall s':>7} {'CPU s':>7} {'peak MB':>8} {'load':>5}", flush=True)
        walls: dict[str, list[float]] = {"kvtrace": [], "peer": []}
        for _ in range(options.rounds):
            trace = folder / "trace.duckdb"
            command = [sys.executable, "-m", "kvtrace", "ingest", "--nsight", str(export), "-o", str(trace)]
            walls["kvtrace"].append(measure("kvtrace", command))
            if options.peer:
                walls["peer"].append(peer(options.peer, export, folder))
        if options.peer:
            ratio = statistics.median(walls["kvtrace"]) / statistics.median(walls["peer"])
            print(f"median wall time, kvtrace over peer: {ratio:.2f}")


def peer(executable: Path, export: Path, folder: Path) -> float:
    """The peer makes its cache beside a copy of the export, from nothing."""
    beside = folder / "peer"
    beside.mkdir()
    copy = beside / "export.sqlite"
    shutil.copy(export, copy)
    try:
        return measure("peer", [str(executable), "warm", str(copy)])
    finally:
        shutil.rmtree(beside)


def measure(label: str, command: list[str]) -> float:
    load = os.getloadavg()[0]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed")
    cpu = usage.ru_utime + usage.ru_stime
    print(f"{label:>8} {wall:7.1f} {cpu:7.1f} {usage.ru_maxrss / 1e3:8.0f} {load:5.1f}", flush=True)
    return wall


if __name__ == "__main__":
    main()
