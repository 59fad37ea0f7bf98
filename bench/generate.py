"""Make a plausible recording of any size without vLLM, for benchmarks of ingest and queries.

    python bench/generate.py RUN --records 100_000_000        # all streams together
    python bench/generate.py RUN --block-events 10_000_000

A tile of some 300,000 records is simulated exactly; further tiles are the same with other requests, blocks, hashes and
times, written with numpy. A tile ends with all blocks free, and the next one goes on from that very pool, so reference
counts, evictions and free counts hold over the whole recording.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from simulate import Tile
from write_recording import BLOCKS, MONOTONIC_NS, REALTIME_NS, ProcessWriter

from kvtrace import __version__
from kvtrace.events import EVENTS, HASH, PROCESS, REQUEST, STRING, TIME, Event
from kvtrace.format import layout

SESSIONS = 160
FRONTEND_PID, ENGINE_PID, WORKER_PID = 1000, 1100, 1200

_NUMPY = {"q": "<i8", "i": "<i4", "I": "<u4", "Q": "<u8", "B": "u1", "?": "u1"}
Arrays = dict[str, np.ndarray]


def generate(run_dir: Path, records: int, engines: int = 2) -> int:
    """Write a recording of about `records` records to a new directory; returns how many it has."""
    tiles = Tiles(records // engines)
    (run_dir / layout.PROCESSES).mkdir(parents=True)
    written = 0
    with_frontend = ProcessWriter(run_dir, FRONTEND_PID, "frontend")
    strings_before = 0
    for engine in range(engines):
        writers = {
            "frontend": with_frontend,
            "engine": ProcessWriter(run_dir, ENGINE_PID + engine, "engine", engine),
            "worker": ProcessWriter(run_dir, WORKER_PID + engine, "worker", engine),
        }
        for number, arrays in enumerate(tiles):
            base = number * tiles.strings
            names = tiles.names(number, engine)
            writers["engine"].intern(names)
            with_frontend.intern(names)
            for name, array in arrays.items():
                event = EVENTS[name]
                offset = strings_before if event.scope == "frontend" else 0
                placed = place(event, array, number * tiles.duration_ns + engine * 1_000, base + offset, engine)
                writers[event.scope].write(event, placed)
                written += len(array)
        strings_before += (number + 1) * tiles.strings
        writers["engine"].close()
        writers["worker"].close()
    with_frontend.close()
    _write_manifest(run_dir, (number + 1) * tiles.duration_ns)
    return written


class Tiles:
    """The engine's records, tile by tile, as structured arrays whose numbers are still local to the tile."""

    def __init__(self, records: int) -> None:
        self.records = records
        first = Tile(range(1, BLOCKS), {}, SESSIONS).run(records)
        self.duration_ns = first.now_ns + 10**9
        self.steps = first.step
        self.requests = 4 * SESSIONS
        self.strings = 2 * self.requests + SESSIONS
        self.first = {name: _array(EVENTS[name], rows) for name, rows in first.records.items()}
        self.block_share = len(first.records["block_event"]) / first.order
        if first.order >= records:
            return
        later = Tile(list(first.free), first.hash_of, SESSIONS).run()
        self.later = {name: _array(EVENTS[name], rows) for name, rows in later.records.items()}
        self.later_order = later.order
        self.next_block = np.arange(BLOCKS, dtype=np.int32)
        self.next_block[list(first.free)] = list(later.free)
        left, left_later = ([tile.hash_of.get(block) for block in tile.free] for tile in (first, later))
        if left != left_later or (first.step, first.requests) != (later.step, later.requests):
            raise AssertionError(
                "a tile does not leave the pool as it found it: more sessions or fewer blocks are needed"
            )

    def __iter__(self) -> Iterator[Arrays]:
        yield {name: self._globalise(_drop_order(array, self.records), 0) for name, array in self.first.items()}
        left = self.records - sum(len(array) for array in self.first.values())
        number = 1
        blocks = np.arange(BLOCKS, dtype=np.int32)
        while left > 0:
            tile = {name: _drop_order(array, left) for name, array in self.later.items()}
            for array in (tile["block_event"], tile["block_table"]):
                array["block_id"] = blocks[array["block_id"]]
            yield {name: self._globalise(array, number) for name, array in tile.items()}
            left -= self.later_order
            number += 1
            blocks = self.next_block[blocks]

    def names(self, number: int, engine: int) -> list[str]:
        """The strings a tile refers to: internal ids, external ids, session tags."""
        first = number * self.requests
        internal = [f"cmpl-{engine}-{first + i:08d}-{i:04x}" for i in range(1, self.requests + 1)]
        external = [f"cmpl-{engine}-{first + i:08d}" for i in range(1, self.requests + 1)]
        return [*internal, *external, *(f"session-{engine}-{number}-{i}" for i in range(1, SESSIONS + 1))]

    def _globalise(self, array: np.ndarray, number: int) -> np.ndarray:
        names = array.dtype.names or ()
        if "step" in names:
            array["step"] += number * self.steps
        if "block_hash" in names:
            array["block_hash"] = _hashes(array["block_hash"], number)
        if "external_id" in names:
            array["external_id"] += self.requests
        for name in {"session", "tenant"}.intersection(names):  # each session is of a tenant of its own
            array[name] += 2 * self.requests
        return array


def place(event: Event, array: np.ndarray, later_ns: int, strings_before: int, engine: int) -> np.ndarray:
    """Move a tile's records to their time, strings and engine."""
    for field in event.fields:
        column = array[field.name]
        if field.type is TIME:
            column += MONOTONIC_NS + later_ns
        elif field.name == "arrival_ns":
            column += REALTIME_NS + later_ns
        elif field.type in (REQUEST, STRING):
            column[column != 0] += strings_before
        elif field.type is PROCESS:
            column[:] = ENGINE_PID + engine
    return array


def _array(event: Event, rows: list[tuple[int, ...]]) -> np.ndarray:
    """Simulated rows as packed records, with the order they were made in as an extra last column."""
    columns = [(field.name, _NUMPY[field.type.code]) for field in event.fields]
    array = np.zeros(len(rows), np.dtype([*columns, ("whole", "u1"), ("order", "<i8"), ("old", "u1")]))
    array["whole"] = 1
    if not rows:
        return array
    order, *values = zip(*rows, strict=True)
    array["order"] = order
    for field, column in zip(event.fields, values, strict=True):
        numbers = np.array(column, np.int64)
        if field.type is HASH:
            array["old"] = numbers < 0
            numbers = np.abs(numbers)
        array[field.name] = numbers
    return array


def _drop_order(array: np.ndarray, most: int) -> np.ndarray:
    """The records among the first `most` of the tile; hashes of the tile before are marked by their lowest bit."""
    kept = array[array["order"] < most]
    names = [name for name in array.dtype.names or () if name not in ("order", "old")]
    packed = np.empty(len(kept), np.dtype([(name, array.dtype[name]) for name in names]))
    for name in names:
        packed[name] = kept[name]
    if "block_hash" in names:
        packed["block_hash"] = packed["block_hash"] << 1 | kept["old"]
    return packed


def _hashes(marked: np.ndarray, number: int) -> np.ndarray:
    """Spread tile-local hash numbers over 64 bits; 0 stays 0."""
    local = marked >> np.uint64(1)
    tile = np.uint64(number) - (marked & np.uint64(1)) + np.uint64(1)
    spread = (tile << np.uint64(24) | local) * np.uint64(0x9E3779B97F4A7C15)
    return np.where(local == 0, np.uint64(0), spread)


def _write_manifest(run_dir: Path, duration_ns: int) -> None:
    manifest = {
        "format_version": layout.FORMAT_VERSION,
        "kvtrace_version": __version__,
        "command": ["python", "bench/generate.py"],
        "started_ns": REALTIME_NS,
        "ended_ns": REALTIME_NS + duration_ns,
        "exit_code": 0,
        "pid": FRONTEND_PID - 1,
    }
    (run_dir / layout.MANIFEST).write_text(json.dumps(manifest))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="directory to make")
    parser.add_argument("--records", type=int, default=1_000_000, help="records over all streams")
    parser.add_argument("--block-events", type=int, help="block events instead (about)")
    parser.add_argument("--engines", type=int, default=2)
    options = parser.parse_args()
    records = options.records
    if options.block_events:
        records = round(options.block_events / block_share())
    print(f"{generate(options.run, records, options.engines):,} records in {options.run}")


def block_share() -> float:
    """The part of a long recording's records that are block events."""
    tiles = Tiles(1 << 62)
    later = tiles.later
    return len(later["block_event"]) / sum(len(array) for array in later.values())


if __name__ == "__main__":
    main()
