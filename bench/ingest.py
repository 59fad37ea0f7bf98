"""Time and memory of ingesting a recording.

    python bench/ingest.py --records 100_000_000      # generates it first, in a temporary directory beside --where
    python bench/ingest.py --run RUN                  # an existing recording

Peak memory is the process's VmHWM: everything resident, mapped segments included.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kvtrace.ingest.run import ingest

HEADING = f"{'records':>12} {'capture MB':>10} {'trace MB':>9} {'seconds':>8} {'M records/s':>11} {'peak MB':>8}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, nargs="+", default=[3_000_000])
    parser.add_argument("--run", type=Path, help="ingest this recording instead of generated ones")
    parser.add_argument("--where", type=Path, help="directory for generated recordings (36 bytes a record)")
    options = parser.parse_args()
    if options.run:
        measure(options.run)
        return
    print(HEADING, flush=True)
    for records in options.records:
        with tempfile.TemporaryDirectory(dir=options.where) as directory:
            run = Path(directory) / "run"
            generate = [
                sys.executable,
                str(Path(__file__).with_name("generate.py")),
                str(run),
                "--records",
                str(records),
            ]
            subprocess.run(generate, check=True, stdout=subprocess.DEVNULL)
            # A process of its own: the peak is the ingest's alone.
            subprocess.run([sys.executable, __file__, "--run", str(run)], check=True)


def measure(run: Path) -> None:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=run.parent) as directory:
        summary = ingest(run, Path(directory) / "trace.duckdb")
        seconds = time.perf_counter() - started
        trace_mb = summary.target.stat().st_size / 1e6
    capture_mb = sum(path.stat().st_size for path in run.rglob("*.seg")) / 1e6
    speed = summary.records / seconds / 1e6
    print(
        f"{summary.records:12,} {capture_mb:10.0f} {trace_mb:9.0f} {seconds:8.2f} {speed:11.2f} {peak_mb():8.0f}",
        flush=True,
    )


def peak_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1000
    return float("nan")


if __name__ == "__main__":
    main()
