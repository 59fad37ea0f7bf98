"""The whole way from a run directory to a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import duckdb

from kvtrace.errors import KvtraceError
from kvtrace.format.reader import ProcessRecording, Recording, open_recording
from kvtrace.ingest import build, client, clock, discarded, merge, run_tables
from kvtrace.ingest.derive import costs, misses, requests, tiers
from kvtrace.ingest.guard import naming
from kvtrace.ingest.importers.importer import Progress
from kvtrace.ingest.schema.trace import fill_stored
from kvtrace.ingest.sources import Sources, import_sources, with_folders_searched, with_named_in_manifest
from kvtrace.ingest.streams import StreamCount, Streams, recording_warnings
from kvtrace.queries.trace import TRACE_NAME


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
    """Result of an ingest."""

    target: Path
    streams: list[StreamCount] = field(default_factory=list)
    joins: list[requests.JoinCount] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    source_tables: list[SourceTable] = field(default_factory=list)
    clocks: merge.Clocks = field(default_factory=merge.Clocks)

    @property
    def records(self) -> int:
        """Records in the trace, over all streams and other sources."""
        return sum(stream.records for stream in self.streams) + sum(table.imported for table in self.source_tables)


def ingest(
    run_dirs: Path | Sequence[Path] | None,
    target: Path | None = None,
    progress: Progress | None = None,
    sources: Sources | None = None,
    *,
    nsight_of_run: bool = True,
    all_tiles: bool = False,
    clock_offsets: Mapping[str, int] | None = None,
    skip_damaged: bool = False,
) -> Summary:
    """Make the trace of a run directory, or one of several, replacing an earlier one atomically.

    Args:
        run_dirs: What `kvtrace record -o` was given; several to merge them, None to ingest `sources` alone.
        target: The DuckDB file to make; trace.duckdb in the run directory unless given. Needed to merge.
        progress: Called now and then, possibly from another thread.
        sources: Profiles and other files to ingest with it.
        nsight_of_run: Ingest the Nsight exports that the runs' manifests name, too.
        all_tiles: Take the tiles of every recorded step, however many there are.
        clock_offsets: What to add to the clock of a recording, ns, by its path or name; others are estimated.
        skip_damaged: Take what is whole of damaged recordings; the summary's warnings say what was left out.

    Raises:
        KvtraceError: Nothing was recorded, an input is damaged or of a newer kvtrace, or `target` cannot be written.
            `target` is then as it was.
    """
    progress = progress or (lambda what, done, total: None)
    sources, found = with_folders_searched(sources or Sources())
    directories = [run_dirs] if isinstance(run_dirs, Path) else list(run_dirs or ())
    if not directories:
        return _ingest_alone(sources, target, found, progress)
    given = merge.directories(directories, clock_offsets or {})
    recordings = _open(directories, skip_damaged=skip_damaged)
    if target is None and len(directories) > 1:
        raise KvtraceError("several recordings make a trace of their own: name it with -o", 2)
    summary = Summary(target or directories[0] / TRACE_NAME, warnings=found)
    if nsight_of_run:
        sources, missing = with_named_in_manifest(sources, directories)
        summary.warnings += missing
    with (
        build.new_trace(summary.target) as connection,
        naming(summary.target if len(directories) > 1 else directories[0]),
    ):
        _fill(connection, recordings, summary, sources, progress, all_tiles=all_tiles, given=given)
    return summary


def _open(directories: Sequence[Path], *, skip_damaged: bool) -> list[Recording]:
    """The recordings, their processes numbered by them. One without processes may still say what clients saw."""
    if repeated := [path for path in directories if [each.resolve() for each in directories].count(path.resolve()) > 1]:
        raise KvtraceError(f"{repeated[0]} was given twice", 2)
    recordings = [open_recording(path, skip_damaged=skip_damaged) for path in directories]
    for number, recording in enumerate(recordings, 1):
        for process in recording.processes:
            process.recording = number
        if not recording.processes and (len(recordings) == 1 or not client.has_records(recording.run_dir)):
            raise KvtraceError(
                f"{recording.run_dir} holds no recorded process: no vLLM process of the run loaded kvtrace's plugin, "
                "or the run ended before one started; `kvtrace record` says at its end what it saw"
            )
    if not any(recording.processes for recording in recordings):
        raise KvtraceError(f"none of {', '.join(map(str, directories))} holds a recorded process")
    return recordings


def _ingest_alone(sources: Sources, target: Path | None, warnings: list[str], progress: Progress) -> Summary:
    if not sources or target is None:
        raise KvtraceError("expected a run directory, or files to ingest and the trace to make of them (-o)")
    summary = Summary(target, warnings=warnings)
    with build.new_trace(target) as connection:
        _import_sources(connection, sources, summary, progress)
        run_tables.insert_run_without_recording(connection, summary.warnings)
    return summary


def _import_sources(
    connection: duckdb.DuckDBPyConnection, sources: Sources, summary: Summary, progress: Progress
) -> None:
    joins, warnings = import_sources(connection, sources, progress)
    progress("stored views", summary.records, summary.records)
    fill_stored(connection)
    summary.joins += [requests.JoinCount(*join) for join in joins]
    summary.warnings += warnings
    rows = connection.execute(
        "SELECT source_id, file, source_table, rows, imported, target FROM source_table "
        "JOIN source USING (source_id) WHERE imported > 0"
    ).fetchall()
    summary.source_tables = [SourceTable(*row) for row in rows]


def _fill(
    connection: duckdb.DuckDBPyConnection,
    recordings: Sequence[Recording],
    summary: Summary,
    sources: Sources,
    progress: Progress,
    *,
    all_tiles: bool,
    given: Mapping[int, int],
) -> None:
    processes = [process for recording in recordings for process in recording.processes]
    clocks = summary.clocks = merge.find_clocks(recordings, processes)
    merge.correct(clocks, recordings, processes, given)
    offsets_ns = _offsets(processes, clocks)
    misfits = run_tables.insert_processes(connection, processes, offsets_ns, clocks.of_process)
    merge.insert_hosts(connection, clocks)
    gone = discarded.insert_discarded(connection, processes, offsets_ns)
    for number, (process, offset_ns) in enumerate(zip(processes, offsets_ns, strict=True), 1):
        readings = clock.residuals(number, process, offset_ns)
        run_tables.insert_clocks(connection, readings)
        summary.warnings += _clock_warnings(process, readings)
    streams = Streams(processes, offsets_ns)
    summary.streams = streams.import_events(connection, progress=progress)
    tile_warnings = streams.import_tiles(connection, progress, all_tiles=all_tiles)
    requests.insert_tile_windows(connection)
    requests.insert_windows_between(connection)
    requests.insert_writes_before_attention(connection)
    merge.correct_arrivals(connection)
    progress("requests and joins", summary.records, summary.records)
    requests.insert_requests(connection, streams.requests.internal_ids)
    costs.insert_cost_model(connection)
    tiers.insert_transfer_rate(connection)
    misses.insert_misses(connection)
    summary.joins = requests.count_joins(connection)
    _import_clients(connection, recordings, summary, clocks)
    run_tables.insert_rows(connection, "stream", summary.streams)
    summary.warnings += [
        *gone,
        *(warning for recording in recordings for warning in recording.warnings),
        *clocks.warnings(),
        *misfits,
        *streams.warnings(),
        *tile_warnings,
        *recording_warnings(processes, summary.streams, streams.overwritten),
    ]
    _import_sources(connection, sources, summary, progress)
    run_tables.insert_recordings(
        connection, recordings, [_correction(recording, clocks, processes) for recording in recordings]
    )
    run_tables.insert_run(connection, recordings, summary.warnings)


def _import_clients(
    connection: duckdb.DuckDBPyConnection, recordings: Sequence[Recording], summary: Summary, clocks: merge.Clocks
) -> None:
    for number, own_clock in clocks.of_client.items():
        recording = recordings[number - 1]
        correction_ns = clocks.correction_ns(own_clock)
        client.import_client(
            connection, recording.run_dir, summary.warnings, number, correction_ns, tell=recording.tell
        )
    if clocks.of_client:
        summary.joins.append(requests.JoinCount(*client.count_join(connection)))


def _offsets(processes: Sequence[ProcessRecording], clocks: merge.Clocks) -> list[int]:
    """Return the offset to add to each process's monotonic readings, ns."""
    by_host = clock.offsets(processes)
    return [
        by_host[clock.host_of(process)] + clocks.correction_ns(number)
        for process, number in zip(processes, clocks.of_process, strict=True)
    ]


def _clock_warnings(process: ProcessRecording, readings: list[clock.Reading]) -> list[str]:
    return [
        f"{process.directory.name}: the host's clock was set by {moved_ns / 1e9:+.3f} s while it was recorded, at "
        f"{after.clock.realtime_ns} or before; one offset holds for all times of the trace, see table clock"
        for after, moved_ns in clock.steps(readings)
    ]


def _correction(recording: Recording, clocks: merge.Clocks, processes: Sequence[ProcessRecording]) -> int:
    """The correction of the clock by which a recording was launched: that of its first process, or of its client."""
    number = recording.processes[0].recording if recording.processes else None
    of = [c for c, p in zip(clocks.of_process, processes, strict=True) if p.recording == number]
    return clocks.correction_ns(of[0] if of else None)
