"""Writes recordings as `kvtrace.capture.recorder` would, but whole arrays at a time."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

import numpy as np
from simulate import BLOCK_TOKENS, MAX_MODEL_TOKENS, USUAL

from kvtrace import __version__
from kvtrace.capture.limits import LARGEST_SEGMENT_BYTES
from kvtrace.capture.stream import FIRST_SEGMENT_BYTES
from kvtrace.events import EVENTS, SCHEMA_VERSION, Event
from kvtrace.format import layout

BLOCKS = 4096
BOOT_ID = "00000000-0000-4000-8000-000000000001"
MONOTONIC_NS = 5_000 * 10**9
REALTIME_NS = 1_790_000_000 * 10**9
VLLM_VERSION = "0.32.0"


class ProcessWriter:
    """Writes a process's directory as `kvtrace.capture.recorder` would."""

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
            sizes = {"block_size_tokens": BLOCK_TOKENS, "blocks": BLOCKS - 1, "kv_groups": 1, "policy": "fcfs"}
            most = {"max_num_seqs": USUAL.max_seqs, "max_num_batched_tokens": USUAL.budget_tokens}
            limits = {**most, "max_model_len": MAX_MODEL_TOKENS}
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
