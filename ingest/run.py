"""The whole way from a run directory to a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import duckdb

from kvtrace.errors import KvtraceError
from kvtrace.events import EVENTS
from kvtrace.ingest import (
    build,
    capture,
    client,
    clock,
    costs,
    derive,
    facts,
    let_go,
    misses,
    tiers,
    tile_tables,
    tiles,
)
from kvtrace.ingest.guard import naming
from kvtrace.ingest.ids import ProcessIds, RequestKeys, process_of_pid
from kvtrace.ingest.sources import Sources, import_sources, with_folders_searched, with_named_in_manifest
from kvtrace.recording import ProcessRecording, Recording, Segment, open_recording

TRACE_NAME = "trace.duckdb"

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many records are through, and how many there are (an estimate)."""


class StreamCount(NamedTuple):
    """A row of table `stream`."""

    process_id: int
    event: str
    segments: int
    records: int
    torn: int
    dropped: int


class SourceTable(NamedTuple):
    """A table of a source that was read; `rows` is what the source says it has."""

    source_id: int
    file: str
    table: str
    rows: int
    imported: int
    target: str


@dataclass
class Summary:
    """What an ingest did."""

    target: Path
    streams: list[StreamCount] = field(default_factory=list)
    joins: list[derive.JoinCount] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    source_tables: list[SourceTable] = field(default_factory=list)

    @property
    def records(self) -> int:
        """Records in the trace, over all streams and other sources."""
        return sum(stream.records for stream in self.streams) + sum(table.imported for table in self.source_tables)


def ingest(
    run_dir: Path | None,
    target: Path | None = None,
    progress: Progress | None = None,
    sources: Sources | None = None,
    *,
    nsight_of_run: bool = True,
    all_tiles: bool = False,
) -> Summary:
    """Make the trace of a run directory, replacing an earlier one atomically.

    Args:
        run_dir: What `kvtrace record -o` was given; None to ingest `sources` alone.
        target: The DuckDB file to make; `run_dir`/trace.duckdb unless given.
        progress: Called now and then, possibly from another thread.
        sources: Profiles and other files to ingest with it.
        nsight_of_run: Ingest the Nsight exports that the run's manifest names, too.
        all_tiles: Take the tiles of every recorded step, however many there are.

    Raises:
        KvtraceError: Nothing was recorded, an input is damaged or of a newer kvtrace, or `target` cannot be written.
            `target` is then as it was.
    """
    progress = progress or (lambda what, done, total: None)
    sources, found = with_folders_searched(sources or Sources())
    if run_dir is None:
        return _ingest_alone(sources, target, found, progress)
    recording = open_recording(run_dir)
    if not recording.processes:
        raise KvtraceError(
            f"{run_dir} holds no recorded process: no vLLM process of the run loaded kvtrace's plugin, or the run "
            "ended before one started; `kvtrace record` says at its end what it saw"
        )
    summary = Summary(target or run_dir / TRACE_NAME, warnings=found)
    if nsight_of_run:
        sources, missing = with_named_in_manifest(sources, run_dir)
        summary.warnings += missing
    with build.new_trace(summary.target) as connection, naming(run_dir):
        _fill(connection, recording, summary, sources, progress, all_tiles=all_tiles)
    return summary


def _ingest_alone(sources: Sources, target: Path | None, warnings: list[str], progress: Progress) -> Summary:
    if not sources or target is None:
        raise KvtraceError("expected a run directory, or files to ingest and the trace to make of them (-o)")
    summary = Summary(target, warnings=warnings)
    with build.new_trace(target) as connection:
        _import_sources(connection, sources, summary, progress)
        facts.insert_run_without_recording(connection, summary.warnings)
    return summary


def _import_sources(
    connection: duckdb.DuckDBPyConnection, sources: Sources, summary: Summary, progress: Progress
) -> None:
    joins, warnings = import_sources(connection, sources, progress)
    summary.joins += [derive.JoinCount(*join) for join in joins]
    summary.warnings += warnings
    rows = connection.execute(
        "SELECT source_id, file, source_table, rows, imported, target FROM source_table "
        "JOIN source USING (source_id) WHERE imported > 0"
    ).fetchall()
    summary.source_tables = [SourceTable(*row) for row in rows]


def _fill(
    connection: duckdb.DuckDBPyConnection,
    recording: Recording,
    summary: Summary,
    sources: Sources,
    progress: Progress,
    *,
    all_tiles: bool,
) -> None:
    processes = recording.processes
    by_host = clock.offsets(processes)
    offsets_ns = [by_host[clock.host_of(process)] for process in processes]
    requests = RequestKeys()
    misfits = facts.insert_processes(connection, processes, offsets_ns)
    gone = let_go.insert_let_go(connection, processes, offsets_ns)
    for number, (process, offset_ns) in enumerate(zip(processes, offsets_ns, strict=True), 1):
        readings = clock.residuals(number, process, offset_ns)
        facts.insert_clocks(connection, readings)
        summary.warnings += _clock_warnings(process, readings)
    summary.streams, unknown = _import_events(connection, processes, offsets_ns, requests, progress)
    tile_warnings = _import_tiles(connection, processes, offsets_ns, progress, all_tiles=all_tiles)
    progress("requests and joins", summary.records, summary.records)
    derive.insert_requests(connection, requests.internal_ids)
    costs.insert_cost_model(connection)
    tiers.insert_transfer_rate(connection)
    misses.insert_misses(connection)
    summary.joins = derive.count_joins(connection)
    if told := client.import_client(connection, recording.run_dir, summary.warnings):
        summary.joins.append(derive.JoinCount("client_request -> request", *told))
    facts.insert_rows(connection, "stream", summary.streams)
    summary.warnings += [
        *gone,
        *recording.warnings,
        *misfits,
        *unknown,
        *tile_warnings,
        *_recording_warnings(processes, summary.streams),
    ]
    _import_sources(connection, sources, summary, progress)
    facts.insert_run(connection, recording, summary.warnings)


def _import_events(
    connection: duckdb.DuckDBPyConnection,
    processes: list[ProcessRecording],
    offsets_ns: list[int],
    requests: RequestKeys,
    progress: Progress,
) -> tuple[list[StreamCount], list[str]]:
    segments = [process.segments() for process in processes]
    ids = [ProcessIds(process.strings(), requests, process_of_pid(process, processes)) for process in processes]
    dropped = [process.dropped() for process in processes]
    total = sum(s.committed_estimate() for by_event in segments for found in by_event.values() for s in found)
    done = 0
    counts = []
    for name in capture.EVENT_ORDER:

        def advance(records: int, name: str = name) -> None:
            nonlocal done
            done += records
            progress(name, done, total)

        for index in range(len(processes)):
            found = segments[index].get(name, [])
            if not found and not dropped[index].get(name):
                continue
            source = capture.Source(EVENTS[name], index + 1, found, ids[index], offsets_ns[index])
            read = capture.import_source(connection, source, advance)
            counts.append(StreamCount(index + 1, name, len(found), *read, dropped[index].get(name, 0)))
    return counts, _id_warnings(processes, segments, ids)


def _import_tiles(
    connection: duckdb.DuckDBPyConnection,
    processes: list[ProcessRecording],
    offsets_ns: list[int],
    progress: Progress,
    *,
    all_tiles: bool,
) -> list[str]:
    warnings = []
    for number, (process, offset_ns) in enumerate(zip(processes, offsets_ns, strict=True), 1):
        if not tiles.has_tiles(process.directory):
            continue
        engines = process_of_pid(process, processes)
        most = None if all_tiles else tile_tables.DEFAULT_TILES
        counts = tile_tables.import_tiles(
            connection, process.directory, engines.get, number, offset_ns, most_tiles=most, progress=progress
        )
        warnings += [f"{process.directory.name}: {text}" for text in counts.warnings()]
    derive.insert_tile_windows(connection)
    return warnings


def _id_warnings(
    processes: list[ProcessRecording], segments: list[dict[str, list[Segment]]], ids: list[ProcessIds]
) -> list[str]:
    warnings = []
    for process, by_event, translated in zip(processes, segments, ids, strict=True):
        for column, count in translated.unknown.items():
            warnings.append(f"{process.directory.name}: {count} values of {column} mean nothing known; they are NULL")
        for event, found in by_event.items():
            warnings.extend(_field_warnings(process, event, found))
    return warnings


def _field_warnings(process: ProcessRecording, event: str, segments: list[Segment]) -> list[str]:
    declared = {field.name for field in EVENTS[event].fields}
    captured = {field.name for segment in segments for field in segment.fields}
    warnings = []
    if foreign := sorted(captured - declared):
        warnings.append(f"{process.directory.name}: this kvtrace does not know {event}.{', '.join(foreign)}; left out")
    if missing := sorted(declared - captured):
        warnings.append(f"{process.directory.name}: {event}.{', '.join(missing)} was not recorded; it is NULL")
    return warnings


def _clock_warnings(process: ProcessRecording, readings: list[clock.Reading]) -> list[str]:
    return [
        f"{process.directory.name}: the host's clock was set by {moved_ns / 1e9:+.3f} s while it was recorded, at "
        f"{after.clock.realtime_ns} or before; one offset holds for all times of the trace, see table clock"
        for after, moved_ns in clock.steps(readings)
    ]


def _recording_warnings(processes: list[ProcessRecording], streams: list[StreamCount]) -> list[str]:
    warnings = []
    for number, process in enumerate(processes, 1):
        name = process.directory.name
        torn = sum(stream.torn for stream in streams if stream.process_id == number)
        dropped = sum(stream.dropped for stream in streams if stream.process_id == number)
        if process.stopped:
            warnings.append(f"{name}: recording stopped early ({process.stopped}); {dropped} records were dropped")
        if torn:
            warnings.append(f"{name}: {torn} torn records were left out: the process died while it wrote them")
        warnings.extend(f"{name}: segment {missing} is missing" for missing in process.missing_segments())
    return warnings
