"""Every reader of files that others wrote: small inputs of it that are whole, and how it is asked to read one.

An input replaces one file of `files`; the others stay as they are. `read` is the parsing and the way into tables; what
follows, the joins over all tables, is what it gives back. Reading dry leaves DuckDB out, which costs ten times as much
as all of kvtrace's own code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from kvtrace.errors import KvtraceError
from kvtrace.format.reader import open_recording
from kvtrace.ingest import clock, merge, run_tables
from kvtrace.ingest import run as ingest_run
from kvtrace.ingest.gpu.kernels import KernelNames
from kvtrace.ingest.importers.importer import Target
from kvtrace.ingest.importers.options import Options
from kvtrace.ingest.importers.registry import all_importers
from kvtrace.ingest.schema.trace import create_schema
from kvtrace.ingest.sources import Sources, import_sources
from kvtrace.ingest.streams import Streams
from kvtrace.lab.explorer import runs_of
from kvtrace.lab.matrix import read_matrix
from kvtrace.lab.report.write import write_report
from kvtrace.lab.sources import load_sweeps
from kvtrace.lab.workloads import make
from kvtrace.queries import Trace, catalogue
from tests.hostile import seeds
from tests.traces import write_trace

Finish = Callable[[], None]
PARAMETERS = [(query.name, param.name) for query in catalogue().values() for param in query.params]


@dataclass(frozen=True)
class Reader:
    """A reader under test.

    Attributes:
        files: Whole inputs by the path they lie at. An input takes the place of one of them.
        read: Reads what lies in a folder; gives back what remains to be done.
        beside: Files that are there whichever input is read.
        shows_place: Its messages have further lines, which show the place.
    """

    name: str
    files: dict[str, bytes]
    read: Callable[[Path, Path, Desk], Finish]
    beside: dict[str, bytes] = field(default_factory=dict)
    shows_place: bool = False

    @property
    def paths(self) -> list[str]:
        """The files' paths in the order that inputs number them in."""
        return sorted(self.files)

    def place(self, folder: Path, path: str, data: bytes) -> Path:
        """Put an input into an empty folder; returns its file."""
        for other, content in {**self.beside, path: data}.items():
            (folder / other).parent.mkdir(parents=True, exist_ok=True)
            (folder / other).write_bytes(content)
        return folder / path


class Dry:
    """A connection to a trace that stays empty: what is written is pulled and forgotten, answers are remembered."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._answers: dict[str, list[Any]] = {}
        self._registered: dict[str, Any] = {}
        self._answer: list[Any] = []

    def register(self, name: str, reader: Any) -> None:
        self._registered[name] = reader

    def unregister(self, name: str) -> None:
        self._registered.pop(name, None)

    def execute(self, sql: str, parameters: object = None) -> Dry:
        word = sql.split(None, 1)[0].upper()
        key = f"{sql} {parameters}" if word == "SELECT" else sql
        if word in ("INSERT", "UPDATE", "DELETE", "DROP", "BEGIN", "ROLLBACK"):
            for reader in self._registered.values():
                for _ in reader:
                    pass
        elif key in self._answers:
            self._answer = self._answers[key]
        else:
            done = self._connection.execute(sql, *([parameters] if parameters else []))
            self._answer = [] if word in ("CREATE", "SET") else done.fetchall()
            if len(self._answers) < 10_000:
                self._answers[key] = self._answer
        return self

    def executemany(self, sql: str, rows: object) -> None:
        pass

    def fetchall(self) -> list[Any]:
        return self._answer

    def fetchone(self) -> Any:
        return self._answer[0] if self._answer else None


class Desk:
    """Output of readers: a trace in memory that is as empty as before after each input, and one on disk."""

    connection: Any

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open()
        self.trace = Trace(write_trace(folder / "empty.duckdb"))

    def _open(self) -> None:
        self._real = duckdb.connect(config={"threads": 1, "memory_limit": "1GB"})
        self._real.execute(f"SET temp_directory = '{self._folder}/spill'; SET enable_progress_bar = false")
        self._real.execute("PRAGMA disable_optimizer")  # planning costs more than these few rows
        create_schema(self._real)
        self._dry = Dry(self._real.cursor())
        self.connection = self._real

    def begin(self, *, dry: bool = False) -> None:
        """Before an input."""
        self.connection = self._dry if dry else self._real
        self.connection.execute("BEGIN")

    def undo(self) -> None:
        """After it."""
        if self.connection is self._dry:
            return
        try:
            self.connection.execute("ROLLBACK")
            temporary = self.connection.execute(
                "SELECT table_name FROM duckdb_tables() WHERE temporary AND NOT internal"
            ).fetchall()
            for (name,) in temporary:
                self.connection.execute(f'DROP TABLE temp."{name}"')
        except duckdb.Error:  # an error that ends the database
            self._real.close()
            self._open()

    def close(self) -> None:
        """Close both."""
        self._real.close()
        self.trace.close()


def _progress(what: str, done: int, total: int) -> None:
    """Nobody looks."""


def _recording(folder: Path, path: Path, desk: Desk) -> Finish:
    recording = open_recording(folder)
    processes = recording.processes
    if not processes:
        raise KvtraceError(f"{path}: no process")
    by_host = clock.offsets(processes)
    offsets_ns = [by_host[clock.host_of(process)] for process in processes]
    streams = Streams(processes, offsets_ns)
    streams.import_events(desk.connection)
    streams.import_tiles(desk.connection, _progress, all_tiles=True)
    # what a journal says, column by column
    run_tables.insert_processes(
        desk.connection, processes, offsets_ns, merge.find_clocks([recording], processes).of_process
    )

    def finish() -> None:
        desk.undo()
        desk.begin()
        summary = ingest_run.Summary(folder / "trace.duckdb")
        ingest_run._fill(desk.connection, [recording], summary, Sources(), _progress, all_tiles=False, given={})

    return finish


def _client(folder: Path, path: Path, desk: Desk) -> Finish:
    ingest_run.client.import_client(desk.connection, folder, [])

    def finish() -> None:
        desk.undo()
        desk.begin()
        _recording(folder, path, desk)()

    return finish


def _profile(kind: str) -> Callable[[Path, Path, Desk], Finish]:
    """A profile; `finish` reads it again and goes on to the joins."""

    def read(folder: Path, path: Path, desk: Desk) -> Finish:
        all_importers()[kind].read(Target(desk.connection, Options(), _progress, KernelNames()), [(1, path)])

        def finish() -> None:
            desk.undo()
            desk.begin()
            import_sources(desk.connection, Sources(**{kind: (path,)}), _progress)
            _look(desk)

        return finish

    return read


def _source(kind: str) -> Callable[[Path, Path, Desk], Finish]:
    """A file of another tool."""

    def read(folder: Path, path: Path, desk: Desk) -> Finish:
        import_sources(desk.connection, Sources(**{kind: (path,)}), _progress)
        return lambda: _look(desk)

    return read


def _look(desk: Desk) -> None:
    """The views that every query stands on."""
    for view in ("step", "kv_access", "request"):
        desk.connection.execute(f"SELECT * FROM {view}").fetchall()


def _matrix(folder: Path, path: Path, desk: Desk) -> Finish:
    matrix = read_matrix(path)

    def finish() -> None:
        assert all(cell.id and cell.label for cell in matrix.cells)

    return finish


def _results(folder: Path, path: Path, desk: Desk) -> Finish:
    load_sweeps(path)

    def finish() -> None:
        runs_of([path])
        write_report([path], folder / "report")

    return finish


def _workload(folder: Path, path: Path, desk: Desk) -> Finish:
    made = make("replayed", {"kind": path.stem, "path": str(path), "jobs": 20})

    def finish() -> None:
        assert made.describe()

    return finish


def _parameter(folder: Path, path: Path, desk: Desk) -> Finish:
    query, param = PARAMETERS[int(path.suffix[1:])]
    value = path.read_bytes().decode("utf-8", "surrogateescape")  # as a command line is
    found = catalogue()[query]
    given: dict[str, Any] = {each.name: "1" for each in found.params if each.required}
    try:
        desk.trace._bind(found, given | {param: value})
    except KvtraceError as error:
        raise KvtraceError(str(error).replace(param, f"{path.name} {param}", 1)) from error

    def finish() -> None:
        try:
            desk.trace.query(query, format="arrow", **(given | {param: value}))
        except KvtraceError as error:  # a value may be out of the query's own range, which DuckDB says
            raise KvtraceError(f"{path.name}: {error}") from error

    return finish


def _sql(folder: Path, path: Path, desk: Desk) -> Finish:
    try:
        desk.trace.sql(path.read_bytes().decode("utf-8", "surrogateescape"), format="arrow")
    except KvtraceError as error:
        raise KvtraceError(f"{path.name}: {error}") from error
    return lambda: None


def readers() -> dict[str, Reader]:
    """All of them by name."""
    files = seeds.recording()
    process = f"{seeds.PROCESS}/"
    journals = {path: data for path, data in files.items() if not path.endswith((".seg", ".kvt"))}
    fixed = {path: data for path, data in journals.items() if "client" not in path}
    segments = {path: data for path, data in files.items() if path.endswith(".seg")}
    some = {path: data for path, data in segments.items() if Path(path).name.startswith(("request_q", "block_e"))}
    params = {f"value.{number}": b"1" for number in range(len(PARAMETERS))}
    made = [
        Reader("capture", segments, _recording, fixed),
        Reader("tiles", {f"{process}tiles.00000.kvt": seeds.tiles()}, _recording, fixed),
        Reader("journal", fixed, _recording, fixed | some),
        Reader("client", {"client.jsonl": journals["client.jsonl"]}, _client, fixed | some),
        Reader("nsight", seeds.nsight(), _profile("nsight")),
        Reader("torch", seeds.torch(), _profile("torch")),
        Reader("kv-events", seeds.kv_events(), _source("kv_events")),
        Reader("unboxkv", seeds.unboxkv(), _source("unboxkv")),
        Reader("sched-trace", seeds.sched_trace(), _source("sched_trace")),
        Reader("requests", seeds.requests() | seeds.other_requests(), _source("requests")),
        Reader("matrix", seeds.matrices(), _matrix),
        Reader("results", seeds.results(), _results),
        Reader("workload", seeds.workloads(), _workload),
        Reader("params", params, _parameter),
        Reader("sql", {"query.sql": seeds.SQL}, _sql, shows_place=True),
    ]
    return {reader.name: reader for reader in made}
