"""Retention of one process's files: which may be discarded, what compaction retains of them, and their deletion."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from kvtrace.errors import KvtraceError
from kvtrace.events import EVENTS
from kvtrace.format import layout
from kvtrace.format.discarded import TILES, Discarded, read_discards
from kvtrace.format.jsonlines import read_json_lines
from kvtrace.format.processes import is_alive, is_here
from kvtrace.format.reader import read_strings, segment_names, string_files, tile_files
from kvtrace.format.segment import Segment, map_segment, read_segment
from kvtrace.format.segment_file import segment_header
from kvtrace.format.tile_file import CHUNK, FILE_HEADER_BYTES, Chunk
from kvtrace.retention.compaction import Compaction, Record


class File(NamedTuple):
    """A file that may be discarded: a segment or a file of tiles that has a successor. `end_ns` is CLOCK_MONOTONIC."""

    end_ns: int
    stream: str
    sequence: int
    bytes: int
    path: Path


class ProcessRetention:
    """Retention of a process directory. `compaction` has the records in force of its discarded files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.compaction = Compaction()
        self._discards = read_discards(directory)
        self._headers: dict[Path, Segment] = {}
        self._compacted: dict[str, int] = {}
        self._facts: dict[str, Any] = {}
        self._died_ns: int | None = None

    def closed(self, now_ns: int) -> Iterator[File]:
        """The files that may be discarded, of each stream in order; of a process that has ended, the newest too."""
        if self._died_ns is None and self._is_dead():
            self._died_ns = now_ns
        for event, sequences in segment_names(self.directory).items():
            whole = [number for number in sequences if number >= self._discarded(event).first]
            for number, following in itertools.pairwise([*whole, None]):
                path, end_ns = self._path(event, number or 0), self._died_ns
                if following is not None:
                    header = self._header(self._path(event, following), is_last=following == whole[-1])
                    end_ns = None if header is None or header.clock is None else header.clock.monotonic_ns
                if end_ns is None or self._header(path, is_last=following is None) is None:
                    break
                yield File(end_ns, event, number or 0, _allocated(path), path)
        offset_ns, end_ns = now_ns - time.time_ns(), 0
        for number, path in tile_files(self.directory)[:-1]:
            end_ns = max(end_ns, path.stat().st_mtime_ns + offset_ns)  # file times are coarse: in order all the same
            yield File(end_ns, TILES, number, _allocated(path), path)

    def fold(self, files: Sequence[File]) -> None:
        """Take up the records in force of some files and count the files as discarded."""
        streams = dict(self._discards.streams)
        for file in files:
            records = _tile_steps(file.path) if file.stream == TILES else self._fold(self._headers[file.path])
            gone = self._discarded(file.stream) if file.stream not in streams else streams[file.stream]
            streams[file.stream] = gone.more(file.sequence + 1, records, file.bytes, file.end_ns)
        self._discards = replace(self._discards, streams=streams)

    def oldest_ns(self, now_ns: int) -> int:
        """No remaining record is older, except retained ones. CLOCK_MONOTONIC."""
        begins = [now_ns]
        for event, sequences in segment_names(self.directory).items():
            oldest = next((number for number in sequences if number >= self._discarded(event).first), None)
            if oldest is None:
                continue
            header = self._header(self._path(event, oldest), is_last=oldest == sequences[-1])
            if header is not None and header.clock is not None and header.committed_estimate():
                begins.append(header.clock.monotonic_ns)
        return min(begins)

    def strings(self) -> dict[int, str]:
        """The interned strings that are still there."""
        return read_strings(self.directory, self._discards.first_strings, [])

    def discard(self, files: Sequence[File], now_ns: int) -> None:
        """Write the retained records in the place of the last files, and delete the others.

        The discarded files are noted first: a reader after a crash in between knows which files do not count.
        """
        strings = self.strings()
        if self._died_ns is not None and self.oldest_ns(now_ns) == now_ns:
            self.compaction = Compaction()  # nothing of it is left that would need it
        first_strings = self._first_strings(now_ns)
        self._discards = replace(self._discards, first_strings=first_strings)
        self._discards.write(self.directory)
        for event, gone in self._discards.streams.items():
            if event != TILES:
                self._write_compacted(event, gone)
        for file in files:
            if file.stream == TILES or file.sequence < self._discards.streams[file.stream].first - 1:
                self._delete(file.path)
        if first_strings:
            texts = ([number, strings[number]] for number in sorted(self.compaction.strings()) if number in strings)
            lines = "".join(json.dumps(line) + "\n" for line in texts)
            _replace(self.directory / layout.strings_name(first_strings - 1), lines.encode())
            for number, path in string_files(self.directory):
                if number < first_strings - 1:
                    path.unlink()

    def _is_dead(self) -> bool:
        if not self._facts:
            journal = self.directory / layout.JOURNAL
            self._facts = next(read_json_lines(journal, []), {}) if journal.exists() else {}
        return bool(self._facts) and is_here(self._facts) and not is_alive(self._facts)

    def _first_strings(self, now_ns: int) -> int:
        """The first file of strings that records may need. One more than is needed stays.

        A thread may have named a string just before a file began that names only those still known, and use it after.
        """
        oldest_ns = self.oldest_ns(now_ns)
        begun = [number for number, path in string_files(self.directory) if _begin_ns(path) <= oldest_ns]
        return max(self._discards.first_strings, begun[-1] - 1 if begun else 0)

    def _write_compacted(self, event: str, gone: Discarded) -> None:
        """Write an event's retained records as the segment before the first whole one; delete the one before that."""
        records = self.compaction.records(event)
        path = self._path(event, gone.first - 1)
        if self._compacted.get(event) == len(records) and path not in self._headers:
            return
        last = self._headers.pop(path, None) or read_segment(path)
        for number in segment_names(self.directory).get(event, []):
            if number < gone.first - 1 and self._path(event, number) not in self._headers:
                self._path(event, number).unlink()
        if records and last is not None:
            _replace(path, _segment(last, records))
        else:
            path.unlink(missing_ok=True)
        self._compacted[event] = len(records)

    def _delete(self, path: Path) -> None:
        self._headers.pop(path, None)
        path.unlink(missing_ok=True)

    def _discarded(self, stream: str) -> Discarded:
        return self._discards.streams.get(stream, Discarded())

    def _path(self, event: str, sequence: int) -> Path:
        return self.directory / layout.segment_name(event, sequence)

    def _header(self, path: Path, *, is_last: bool) -> Segment | None:
        """A segment's header, read once; None if it is still being made, as only the last one can be."""
        if path not in self._headers:
            try:
                segment = read_segment(path)
            except KvtraceError:
                if not is_last:
                    raise
                segment = None
            if segment is None:
                return None
            self._headers[path] = segment
        return self._headers[path]

    def _fold(self, segment: Segment) -> int:
        """Take up a segment; how many whole records it has."""
        records = replace(segment, followed=True).scan().records
        if records and Compaction.takes(segment.event):
            _check_fields(segment)
            self.compaction.fold(segment.event, _records(segment))
        return records


def _check_fields(segment: Segment) -> None:
    declared = [(field.name, field.type.code) for field in EVENTS[segment.event].fields]
    if [(field.name, field.code) for field in segment.fields] != declared:
        raise KvtraceError(
            f"{segment.path} has other fields than this kvtrace records, so it cannot be told what to keep: vLLM's "
            "Python has another kvtrace than the one that launched it; install the same one"
        )


def _records(segment: Segment) -> Iterator[Record]:
    """The whole records of a closed segment, in order. Its fields are those that are declared."""
    event = EVENTS[segment.event]
    with map_segment(segment) as data:
        end = layout.SEGMENT_HEADER_BYTES + segment.slots * segment.record_bytes
        for *values, whole in event.struct.iter_unpack(data[layout.SEGMENT_HEADER_BYTES : end]):
            if whole == 1:
                yield event.record(*values)


def _segment(like: Segment, records: Sequence[Record]) -> bytes:
    """A segment that is full of some records."""
    event, clock = EVENTS[like.event], like.clock
    size = layout.SEGMENT_HEADER_BYTES + len(records) * event.struct.size
    facts = {} if clock is None else clock._asdict()
    header = segment_header(event, like.pid, like.sequence, size, facts)
    return header + b"".join(event.struct.pack(*record, 1) for record in records)


def _tile_steps(path: Path) -> int:
    """Steps in a file of tiles, by their headers."""
    count, offset = 0, FILE_HEADER_BYTES
    with path.open("rb", buffering=0) as file:
        while len(header := os.pread(file.fileno(), CHUNK.size, offset)) == CHUNK.size:
            count, offset = count + 1, offset + CHUNK.size + Chunk(*CHUNK.unpack(header)).payload_bytes
    return count


def _begin_ns(strings: Path) -> int:
    """Return when a file of strings began, CLOCK_MONOTONIC; 0 for the first."""
    with strings.open("rb") as file, suppress(ValueError):
        first = json.loads(file.readline())
        if isinstance(first, dict):
            return int(first["monotonic_ns"])
    return 0


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


def _allocated(path: Path) -> int:
    return path.stat().st_blocks * 512
