"""Inputs that once crashed a reader, made it hang, or got a message that named no place."""

from __future__ import annotations

import json
import lzma
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kvtrace.format import layout
from kvtrace.format import tile_file as tile_files
from tests.hostile import seeds


class Case(NamedTuple):
    """Finding: the reader, the file, the content (made when it is asked for) and what happened."""

    reader: str
    path: str
    data: Callable[[], bytes]
    what: str


def _json(value: Any) -> Callable[[], bytes]:
    return lambda: json.dumps(value).encode() + b"\n"


def _raw(data: bytes) -> Callable[[], bytes]:
    return lambda: data


def _torch(**changes: Any) -> Callable[[], bytes]:
    kernel = {"ph": "X", "cat": "kernel", "name": "f", "pid": 7, "tid": 8, "ts": 1, "dur": 2, "args": {"stream": 7}}
    return _json({"traceEvents": [kernel | changes], "baseTimeNanoseconds": changes.pop("base", 5)})


def _events(event: Any = None, **changes: Any) -> Callable[[], bytes]:
    stored = {"type": "BlockStored", "block_hashes": [1], "block_size": 16, "medium": "GPU", "group_idx": 0}
    return _json({"sequence": 1, "ts": 1.5, "events": [stored | (event or {})]} | changes)


def _tiles(at: int, code: str, value: int) -> Callable[[], bytes]:
    """The tile file with a number changed at a place behind its header."""

    def made() -> bytes:
        data = bytearray(seeds.tiles())
        struct.pack_into(f"<{code}", data, tile_files.FILE_HEADER_BYTES + at, value)
        return bytes(data)

    return made


def _counters() -> bytes:
    data = bytearray(seeds.recording()[COUNTERS])
    layout.COUNTERS_ENTRY.pack_into(data, layout.COUNTERS_HEADER_BYTES, 1 << 63, 0)
    return bytes(data)


def _segment(**changes: Any) -> Callable[[], bytes]:
    def made() -> bytes:
        data = seeds.recording()[SEGMENT]
        magic, version, record, length = layout.SEGMENT_HEADER.unpack_from(data)
        start = layout.SEGMENT_HEADER.size
        header = json.dumps(json.loads(data[start : start + length]) | changes).encode()
        head = layout.SEGMENT_HEADER.pack(magic, version, record, len(header)) + header
        return head.ljust(layout.SEGMENT_HEADER_BYTES, b"\0") + data[layout.SEGMENT_HEADER_BYTES :]

    return made


def _sqlite(statement: str) -> Callable[[], bytes]:
    def made() -> bytes:
        with sqlite3.connect(":memory:") as database:
            database.deserialize(seeds.nsight()["profile.sqlite"])
            database.execute(statement)
            database.commit()
            return database.serialize()

    return made


def _found(name: str) -> Callable[[], bytes]:
    """A file that the fuzzer made."""
    return lambda: lzma.decompress((Path(__file__).parent / "found" / name).read_bytes())


def _log() -> bytes:
    budget = b"max_num_batched_tokens=-2147483648"
    return seeds.unboxkv()["a.log"].replace(b"max_num_batched_tokens=32", budget)


def _usage() -> bytes:
    return seeds.unboxkv()["a.log"].replace(b"KV cache usage: 10.0%", b"KV cache usage: 1" + b"0" * 18 + b"%")


SEGMENT = f"{seeds.PROCESS}/block_event.00000.seg"
QUEUED, FORWARD = f"{seeds.PROCESS}/request_queued.00000.seg", f"{seeds.PROCESS}/forward.00000.seg"
COUNTERS = f"{seeds.PROCESS}/{layout.COUNTERS}"
TILES = f"{seeds.PROCESS}/tiles.00000.kvt"
CHUNK = tile_files.CHUNK.size
DEEP = b"[" * 100_000

CASES = [
    Case("capture", SEGMENT, _segment(event=["block_event"]), "an event that is a list"),
    Case("capture", SEGMENT, _segment(segment_bytes="line\nbreak"), "a size of two lines"),
    Case("capture", QUEUED, _found("capture-request.seg.xz"), "queued requests that do not say which"),
    Case("capture", FORWARD, _found("capture-engine.seg.xz"), "forward passes that do not say of which engine"),
    Case("tiles", TILES, _tiles(8, "q", 4_104_584_621), "a step beyond 31 bits"),
    Case("tiles", TILES, _tiles(CHUNK - 8, "I", 1 << 31), "lost steps beyond 31 bits"),
    Case("tiles", TILES, _tiles(CHUNK + 16, "I", 2_734_686_208), "a program's tiles beyond the step's"),
    Case("tiles", TILES, _tiles(CHUNK + 20, "H", 65_535), "more tiles than there are"),
    Case("tiles", TILES, _tiles(CHUNK + 22, "H", 0x7F), "block ids beyond the step's tiles"),
    Case("tiles", TILES, _tiles(CHUNK + 20, "H", 0), "a program without a tile"),
    Case("tiles", TILES, _tiles(16, "q", (1 << 63) - 1), "a clock beyond its range"),
    Case("torch", "trace.json", _torch(ts=10**30), "a time beyond 64 bits"),
    Case("torch", "trace.json", _torch(ts="1e999"), "an infinite time"),
    Case("torch", "trace.json", _torch(base=1 << 62, ts=1 << 52), "a base and a time beyond 64 bits together"),
    Case("torch", "trace.json", _torch(args="x"), "arguments that are text"),
    Case("torch", "trace.json", _torch(args=["x"], cat="cuda_runtime"), "arguments of a call that are a list"),
    Case("torch", "trace.json", _torch(args={"grid": 5}), "a grid that is a number"),
    Case("torch", "trace.json", _torch(name="\ud800"), "half a surrogate pair"),
    Case("torch", "trace.json", _torch(cat="cpu_op", pid=1 << 31), "a process id beyond 31 bits"),
    Case("torch", "trace.json", _torch(ph="M", name="process_name", args=[1]), "a name that is a list"),
    Case("kv-events", "events.jsonl", _events(data_parallel_rank={}), "a rank that is an object"),
    Case("kv-events", "events.jsonl", _raw(DEEP + b"\n"), "deep nesting"),
    Case("kv-events", "events.jsonl", _events(ts="1e300"), "a time beyond 64 bits"),
    Case("kv-events", "events.jsonl", _events(sequence=1e400), "an infinite sequence"),
    Case("kv-events", "events.jsonl", _events({"group_idx": 256}), "a group beyond 8 bits"),
    Case("kv-events", "events.jsonl", _events({"block_size": "x"}), "a block size that is text"),
    Case("kv-events", "events.jsonl", _events({"medium": "\ud800"}), "a medium that is half a surrogate pair"),
    Case("nsight", "profile.sqlite", _sqlite(
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET rowid = 9223372036854775807 WHERE rowid = 1"
    ), "row ids so far apart that it was read in 4096 pieces"),
    Case("nsight", "profile.sqlite", _found("nsight-out-of-memory.sqlite.xz"), "SQLite says that memory ran out"),
    Case("nsight", "profile.sqlite", _sqlite(
        "UPDATE PROCESSES SET pid = 2147483648"
    ), "a process id beyond 31 bits, in a transaction that is then aborted"),
    Case("nsight", "profile.sqlite", _found("nsight-metric-name.sqlite.xz"), "an id of a metric that is no number"),
    Case("unboxkv", "a.log", _log, "a budget less tokens beyond 31 bits"),
    Case("unboxkv", "a.log", _usage, "a share of blocks beyond 31 bits"),
    Case("requests", "mooncake.jsonl", _json(
        {"timestamp": 7, "input_length": 7, "output_length": 1, "hash_ids": [], "\ud800": 7}
    ), "a field that is half a surrogate pair"),
    Case("sched-trace", "sched.jsonl", _json(
        {"kind": "step_snapshot", "step": 1, "ts": 1, "\ud800": "\ud800"}
    ), "a field of a step that is half a surrogate pair"),
    Case("journal", COUNTERS, _counters, "a count of lost records beyond 63 bits"),
    Case("client", "client.jsonl", _json({"request_id": "a", "send_ns": "0" * 5000}), "a time of 5000 digits"),
    Case("matrix", "matrix.json", _raw(DEEP), "deep nesting"),
    Case("matrix", "matrix.json", _raw(b'"x"'), "no object"),
    Case("matrix", "matrix.json", _json({"repeats": 10**9, "workloads": {"a": {"kind": "fixed"}}}), "10^9 cells"),
    Case("matrix", "matrix.json", _json({"repeats": 8192, "workloads": {"a": {"kind": "fixed"}}}), "8192 cells"),
    Case("matrix", "matrix.json", _json({"repeats": {}, "workloads": {"a": {}}}), "repeats that are no number"),
    Case("matrix", "matrix.json", _json({"line\nbreak" * 500: 1}), "an entry of many lines"),
    Case("matrix", "matrix.toml", _raw(b"repeats = inf\n[workloads.a]\nkind = 'fixed'\n"), "infinite repeats"),
    Case("workload", "mooncake.jsonl", _raw(
        b'{"timestamp": 0, "input_length": 1e999, "output_length": 5, "hash_ids": [0]}\n'
    ), "an infinite length"),
    Case("workload", "mooncake.jsonl", _json(
        {"timestamp": "a" * 5000, "input_length": 1, "output_length": 5, "hash_ids": [0]}
    ), "a time of 5000 letters"),
    Case("params", "value.0", _raw(b"\xed\xa0\x80"), "bytes that are no text"),
    Case("params", "value.0", _raw(b"9" * 5000), "a very long value"),
    Case("sql", "query.sql", _raw(b"SELECT '\xff'"), "bytes that are no text"),
    Case("sql", "query.sql", _raw(b"(WITH a AS (" * 40), "more nesting than DuckDB's parser can take"),
    Case("sql", "query.sql", _raw(b"SELECT * FROM a" + b"9" * 50_000), "a table with a very long name"),
]  # fmt: skip
