"""A recording as another host would have made it, with another clock."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from kvtrace.events import REQUEST_QUEUED
from kvtrace.format import layout
from kvtrace.format.reader import open_recording
from kvtrace.ingest.capture import record_type


def on_another_host(run: Path, target: Path, host: str, ahead_ns: int) -> Path:
    """Copy a recording to `target`, as of a host of that name whose UNIX time is ahead."""
    shutil.copytree(run, target)
    manifest = target / layout.MANIFEST
    if manifest.exists():
        manifest.write_text(json.dumps(_ahead(json.loads(manifest.read_text()), ahead_ns, "started_ns", "ended_ns")))
    client = target / layout.CLIENT
    if client.exists():
        names = ("due_ns", "send_ns", "first_token_ns", "last_token_ns")
        lines = [_ahead(json.loads(line), ahead_ns, *names) for line in client.read_text().splitlines()]
        client.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for process in open_recording(target).processes:
        journal = process.directory / layout.JOURNAL
        lines = [_ahead(json.loads(line), ahead_ns, "realtime_ns") for line in journal.read_text().splitlines()]
        lines[0] |= {"host": host, "boot_id": host}
        journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for path in process.directory.glob("*.seg"):
            _move_header(path, ahead_ns)
        for segment in process.segments().get(REQUEST_QUEUED.name, []):
            records = np.memmap(
                segment.path, record_type(segment), "r+", layout.SEGMENT_HEADER_BYTES, segment.scan().used_slots
            )
            records["arrival_ns"][records["arrival_ns"] != 0] += ahead_ns
            records.flush()
    return target


def _ahead(facts: dict[str, Any], ahead_ns: int, *names: str) -> dict[str, Any]:
    return {**facts, **{name: facts[name] + ahead_ns for name in names if facts.get(name) is not None}}


def _move_header(path: Path, ahead_ns: int) -> None:
    data = bytearray(path.read_bytes())
    magic, version, record_bytes, length = layout.SEGMENT_HEADER.unpack_from(data)
    start = layout.SEGMENT_HEADER.size
    header = json.dumps(_ahead(json.loads(data[start : start + length]), ahead_ns, "realtime_ns")).encode()
    layout.SEGMENT_HEADER.pack_into(data, 0, magic, version, record_bytes, len(header))
    data[start : layout.SEGMENT_HEADER_BYTES] = header.ljust(layout.SEGMENT_HEADER_BYTES - start, b"\0")
    path.write_bytes(data)
