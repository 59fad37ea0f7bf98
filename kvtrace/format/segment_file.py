"""A segment file as its writer has it: mapped, with all its blocks allocated."""

from __future__ import annotations

import json
import mmap
import os
import time
from pathlib import Path

from kvtrace.events import SCHEMA_VERSION, Event
from kvtrace.format import layout


def clock_pair() -> dict[str, int]:
    """Read both clocks at (nearly) the same moment: the realtime reading lies between two monotonic ones."""
    before = time.monotonic_ns()
    realtime = time.time_ns()
    after = time.monotonic_ns()
    return {"realtime_ns": realtime, "monotonic_ns": (before + after) // 2, "uncertainty_ns": (after - before + 1) // 2}


def segment_header(event: Event, pid: int, sequence: int, segment_bytes: int, clock: dict[str, int]) -> bytes:
    """The first `SEGMENT_HEADER_BYTES` of a segment; the magic must reach the file last."""
    facts = json.dumps(
        {
            "event": event.name,
            "schema_version": SCHEMA_VERSION,
            "fields": [[field.name, field.type.name, field.type.code] for field in event.fields],
            "pid": pid,
            "sequence": sequence,
            "segment_bytes": segment_bytes,
            **clock,
        }
    ).encode()
    head = layout.SEGMENT_HEADER.pack(layout.SEGMENT_MAGIC, layout.FORMAT_VERSION, event.struct.size, len(facts))
    return (head + facts).ljust(layout.SEGMENT_HEADER_BYTES, b"\0")


def store(map_: mmap.mmap, offset: int, data: bytes) -> None:
    """Replace what a few bytes hold. `pack_into` would empty them first, and a `kill -9` might come in between."""
    map_[offset : offset + len(data)] = data


def seal(segment: mmap.mmap, end: int) -> None:
    """Say in the header that places were given out up to `end`, and that there will be no more."""
    layout.SEGMENT_SEAL.pack_into(segment, layout.SEGMENT_SEAL_OFFSET, end)


def allocate(path: Path, size: int) -> mmap.mmap:
    """Create and map a file whose blocks are all allocated: a full disk is an OSError here, not a SIGBUS later."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        try:
            os.posix_fallocate(descriptor, 0, size)
            map_ = mmap.mmap(descriptor, size)
            map_.madvise(mmap.MADV_RANDOM)  # or the first write reads ahead: milliseconds, in the engine's time
            return map_
        except (OSError, ValueError):
            os.unlink(path)
            raise
    finally:
        os.close(descriptor)
