"""Contents of a recording of tiles, and the time to read it: `python bench/tile_reader.py RUN`.

Prints, of each process that recorded tiles, its steps, those lost or left out, the time they span and the bytes they
take; then decodes the tiles' times, as ingest does, on two cores, up to `--tiles` of them.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from pathlib import Path

from kvtrace.format import layout
from kvtrace.format.reader import tile_files
from kvtrace.ingest.derive import tile_columns


def describe(directory: Path) -> None:
    """Print what the headers of a process's steps say."""
    steps, torn = tile_columns.headers(directory)
    if not steps:
        print(f"{directory.name}: no whole step, torn {torn}")
        return
    seconds = (steps[-1].opened_gpu_ns - steps[0].opened_gpu_ns) / 1e9
    places = sum(step.tiles for step in steps)
    size = sum(path.stat().st_size for _, path in tile_files(directory))
    print(
        f"{directory.name}: {len(steps):,} steps in {seconds:.1f} s, lost {sum(step.lost_steps for step in steps):,}, "
        f"left out {sum(step.filtered_steps for step in steps):,}, torn {torn}; {size:,} bytes, "
        f"{size / places:.2f} a place of {places:,}"
    )
    numbers = [step.step for step in steps]
    holes = sum(after - before - 1 for before, after in itertools.pairwise(sorted(numbers)))
    print(f"  step numbers {min(numbers):,} to {max(numbers):,}, {holes:,} between them without tiles")


def read(directory: Path, most: int) -> None:
    """Decode the times of up to `most` tiles; print how fast that was."""
    count = size = 0
    start = time.perf_counter()
    for step in tile_columns.steps(directory):
        count += len(tile_columns.times(step).v_ns)
        size += step.chunk.payload_bytes
        if count >= most:
            break
    seconds = time.perf_counter() - start
    if not count:
        print("  no tiles")
        return
    rate = count / seconds / 1e6
    print(f"  {count:,} tiles of {size / count:.2f} bytes read in {seconds:.1f} s: {rate:.1f} million a second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--tiles", type=int, default=500_000_000, help="how many to decode at most, of each process")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    for directory in filter(tile_columns.has_tiles, sorted((options.run / layout.PROCESSES).iterdir())):
        describe(directory)
        read(directory, options.tiles)


if __name__ == "__main__":
    main()
