"""Event streams and tiles of all recorded processes into their tables, and what could not be read of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import duckdb

from kvtrace.events import EVENTS
from kvtrace.format.discarded import TILES
from kvtrace.format.reader import ProcessRecording, Segment
from kvtrace.ingest import capture
from kvtrace.ingest.derive import tile_columns, tile_tables
from kvtrace.ingest.derive.owners import Owners
from kvtrace.ingest.ids import ProcessIds, RequestKeys, process_of_pid
from kvtrace.ingest.importers.importer import Progress


class StreamCount(NamedTuple):
    """A row of table `stream`."""

    process_id: int
    event: str
    segments: int
    records: int
    torn: int
    dropped: int


class Streams:
    """Streams recorded by some processes, and the keys of its requests. A process's number is its place, from 1."""

    def __init__(self, processes: Sequence[ProcessRecording], offsets_ns: Sequence[int]) -> None:
        self.requests = RequestKeys()
        self._processes = processes
        self._offsets_ns = offsets_ns
        self._segments = [process.segments() for process in processes]
        self._pids = [process_of_pid(process, processes) for process in processes]
        self._owners = Owners(processes, self._pids)
        self.overwritten: Counter[int] = Counter()
        """By process: records that are not whole, for another reason than that it died."""
        self._ids = [self._translator(number) for number in range(1, len(processes) + 1)]

    def _translator(self, number: int) -> ProcessIds:
        def owner(internal_id: str) -> int:
            return self._owners.owner(number, internal_id)

        process = self._processes[number - 1]
        return ProcessIds(process.strings(), self.requests, self._pids[number - 1], owner)

    def import_events(
        self,
        connection: duckdb.DuckDBPyConnection,
        names: Iterable[str] = capture.EVENT_ORDER,
        progress: Progress = lambda what, done, total: None,
    ) -> list[StreamCount]:
        """Fill the tables of some events."""
        dropped = [process.dropped() for process in self._processes]
        total = sum(s.committed_estimate() for by_event in self._segments for found in by_event.values() for s in found)
        done = 0
        counts = []
        for name in names:

            def advance(records: int, name: str = name) -> None:
                nonlocal done
                done += records
                progress(name, done, total)

            for index, offset_ns in enumerate(self._offsets_ns):
                found = self._segments[index].get(name, [])
                if not found and not dropped[index].get(name):
                    continue
                times = _possible_times(self._processes[index])
                source = capture.Source(EVENTS[name], index + 1, found, self._ids[index], offset_ns, times)
                read = capture.import_source(connection, source, advance)
                self.overwritten[index + 1] += read.overwritten
                lost = dropped[index].get(name, 0)
                counts.append(StreamCount(index + 1, name, len(found), read.records, read.torn, lost))
        return counts

    def import_tiles(self, connection: duckdb.DuckDBPyConnection, progress: Progress, *, all_tiles: bool) -> list[str]:
        """Fill the tables of tiles; returns warnings."""
        warnings = []
        for number, (process, offset_ns) in enumerate(zip(self._processes, self._offsets_ns, strict=True), 1):
            lost, unwritten = _said_of_tiles(process, "lost_steps"), _said_of_tiles(process, "unwritten_steps")
            if not tile_columns.has_tiles(process.directory) and not lost and not unwritten:
                continue
            engines = self._pids[number - 1]
            most = None if all_tiles else tile_tables.DEFAULT_TILES
            counts = tile_tables.import_tiles(
                connection,
                process.directory,
                engines.get,
                number,
                offset_ns,
                most_tiles=most,
                progress=progress,
                tell=process.tell,
            )
            # Files do not say of those at the end.
            counts = counts._replace(lost_steps=max(counts.lost_steps, lost), unwritten_steps=unwritten)
            warnings += [f"{process.directory.name}: {text}" for text in counts.warnings()]
        return warnings

    def warnings(self) -> list[str]:
        """Ids and fields that mean nothing known, and requests that could not be told apart."""
        warnings = []
        for process, by_event, translated in zip(self._processes, self._segments, self._ids, strict=True):
            for column, count in translated.unknown.items():
                warnings.append(
                    f"{process.directory.name}: {count} values of {column} mean nothing known; they are NULL"
                )
            for event, found in by_event.items():
                warnings.extend(_field_warnings(process, event, found))
        return warnings + self._owners.warnings()


_YEAR_NS = 366 * 86_400 * 10**9


def _possible_times(process: ProcessRecording) -> tuple[int, int] | None:
    """Range of what a process's clock can have read, where damage is left out; None where it is not looked for."""
    began_ns = process.clocks[0].monotonic_ns
    return (max(0, began_ns - _YEAR_NS), began_ns + _YEAR_NS) if process.tell else None


def _said_of_tiles(process: ProcessRecording, what: str) -> int:
    """A count of steps by a process's own last words; 0 if files of tiles were discarded, or it was killed."""
    count = process.tiles.get(what)
    return count if isinstance(count, int) and TILES not in process.discards.streams else 0


def _field_warnings(process: ProcessRecording, event: str, segments: list[Segment]) -> list[str]:
    declared = {field.name for field in EVENTS[event].fields}
    captured = {field.name for segment in segments for field in segment.fields}
    warnings = []
    if foreign := sorted(captured - declared):
        warnings.append(f"{process.directory.name}: this kvtrace does not know {event}.{', '.join(foreign)}; left out")
    if missing := sorted(declared - captured):
        warnings.append(f"{process.directory.name}: {event}.{', '.join(missing)} was not recorded; it is NULL")
    return warnings


def recording_warnings(
    processes: Sequence[ProcessRecording], streams: Sequence[StreamCount], overwritten: Mapping[int, int]
) -> list[str]:
    """Say what was lost, while it was recorded and since."""
    warnings = []
    for number, process in enumerate(processes, 1):
        name = process.directory.name
        torn = sum(stream.torn for stream in streams if stream.process_id == number)
        dropped = sum(stream.dropped for stream in streams if stream.process_id == number)
        if process.stopped:
            warnings.append(f"{name}: recording stopped early ({process.stopped}); {dropped} records were dropped")
        changed = overwritten.get(number, 0)
        where = ", ".join(stream.event for stream in streams if stream.process_id == number and stream.torn)
        if torn > changed:
            warnings.append(
                f"{name}: {torn - changed} torn records of {where} were left out: the process died while it wrote them"
            )
        if changed:
            warnings.append(
                f"{name}: {changed} records of {where} were left out: something overwrote their bytes after they were "
                "recorded"
            )
        warnings.extend(f"{name}: segment {missing} is missing" for missing in process.missing_segments())
    return warnings
