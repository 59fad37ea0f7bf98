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
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from simulate import BLOCK_TOKENS, BUDGET_TOKENS, MAX_MODEL_TOKENS, MAX_SEQS, Tile

from kvtrace import __version__, layout
from kvtrace.capture import FIRST_SEGMENT_BYTES, LARGEST_SEGMENT_BYTES
from kvtrace.events import EVENTS, HASH, PROCESS, REQUEST, SCHEMA_VERSION, STRING, TIME, Event

BLOCKS = 4096
SESSIONS = 160
BOOT_ID = "00000000-0000-4000-8000-000000000001"
MONOTONIC_NS = 5_000 * 10**9
REALTIME_NS = 1_790_000_000 * 10**9
FRONTEND_PID, ENGINE_PID, WORKER_PID = 1000, 1100, 1200
VLLM_VERSION = "0.32.0"

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
        if "session" in names:
            array["session"] += 2 * self.requests
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


class ProcessWriter:
    """Writes a process's directory as `kvtrace.capture` would."""

    def __init__(self, run_dir: Path, pid: int, role: str, rank: int = 0) -> None:
        self.pid = pid
        self.directory = run_dir / layout.PROCESSES / f"generated-{pid}-{MONOTONIC_NS}"
        self.directory.mkdir()
        self._strings = (self.directory / layout.STRINGS).open("w")
        self._next_string = 1
        self._segments: dict[str, SegmentWriter] = {}
        self._write_journal(role, rank)
        counters = bytearray(layout.COUNTERS_BYTES)
        layout.COUNTERS_HEADER.pack_into(counters, 0, layout.COUNTERS_MAGIC, layout.FORMAT_VERSION, 0)
        (self.directory / layout.COUNTERS).write_bytes(counters)

    def intern(self, texts: list[str]) -> None:
        self._strings.writelines(f"[{i}, {json.dumps(text)}]\n" for i, text in enumerate(texts, self._next_string))
        self._next_string += len(texts)

    def write(self, event: Event, array: np.ndarray) -> None:
        if len(array):
            if event.name not in self._segments:
                self._segments[event.name] = SegmentWriter(self.directory, event, self.pid)
            self._segments[event.name].write(array)

    def close(self) -> None:
        self._strings.close()
        for writer in self._segments.values():
            writer.close()

    def _write_journal(self, role: str, rank: int) -> None:
        clock = {"realtime_ns": REALTIME_NS, "monotonic_ns": MONOTONIC_NS, "uncertainty_ns": 50}
        process = {"kvtrace": __version__, "python": platform.python_version(), "host": "generated", "boot_id": BOOT_ID}
        lines: list[dict[str, object]] = [
            {"kind": "process", "format_version": layout.FORMAT_VERSION, **process, "pid": self.pid, "ppid": 1}
            | {"streams": list(EVENTS), **clock},
            {"kind": "vllm", "version": VLLM_VERSION},
            {"kind": "role", "role": role},
        ]
        if role != "frontend":
            lines.append({"kind": "rank", "dp_rank": rank, "tp_rank": 0, "pp_rank": 0})
        if role == "engine":
            sizes = {"block_size_tokens": BLOCK_TOKENS, "blocks": BLOCKS - 1, "kv_groups": 1, "max_seqs": MAX_SEQS}
            limits = {"max_batched_tokens": BUDGET_TOKENS, "max_model_tokens": MAX_MODEL_TOKENS, "policy": "fcfs"}
            flags = {"prefix_caching": True, "chunked_prefill": True, "async_scheduling": False}
            lines.append({"kind": "engine", "model": "generated", **sizes, **limits, **flags, "block_bytes": 1 << 21})
        text = "".join(json.dumps({"monotonic_ns": MONOTONIC_NS, **line}) + "\n" for line in lines)
        (self.directory / layout.JOURNAL).write_text(text)


class SegmentWriter:
    """Appends records to an event's segments, which grow as the capture log's do."""

    def __init__(self, directory: Path, event: Event, pid: int) -> None:
        self.directory = directory
        self.event = event
        self.pid = pid
        self.sequence = -1
        self.room = 0

    def write(self, array: np.ndarray) -> None:
        while len(array):
            if not self.room:
                self._next()
            self.file.write(array[: self.room].tobytes())
            written = min(self.room, len(array))
            self.room -= written
            array = array[written:]

    def _next(self) -> None:
        self.close()
        self.sequence += 1
        size = min(FIRST_SEGMENT_BYTES << (2 * self.sequence), LARGEST_SEGMENT_BYTES)
        record_bytes = self.event.struct.size
        facts = {
            "event": self.event.name,
            "schema_version": SCHEMA_VERSION,
            "fields": [[field.name, field.type.name, field.type.code] for field in self.event.fields],
            "pid": self.pid,
            "sequence": self.sequence,
            "segment_bytes": size,
            "realtime_ns": REALTIME_NS,
            "monotonic_ns": MONOTONIC_NS,
            "uncertainty_ns": 50,
        }
        header = json.dumps(facts).encode()
        head = layout.SEGMENT_HEADER.pack(layout.SEGMENT_MAGIC, layout.FORMAT_VERSION, record_bytes, len(header))
        self.file = (self.directory / layout.segment_name(self.event.name, self.sequence)).open("wb")
        os.truncate(self.file.fileno(), size)
        self.file.write((head + header).ljust(layout.SEGMENT_HEADER_BYTES, b"\0"))
        self.room = (size - layout.SEGMENT_HEADER_BYTES) // record_bytes

    def close(self) -> None:
        if self.sequence >= 0:
            self.file.close()


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
