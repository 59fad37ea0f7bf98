"""Opens an Nsight Systems export and says clearly what is wrong with one that cannot be read.

Only names of tables and columns, counts and the few facts in `_FACTS` are read here. The tables that hold the target's
environment and output are never read at all.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlite_utils

from kvtrace.errors import KvtraceError
from kvtrace.ingest.importers.nsight.tables import IMPORTS

NEWEST_SCHEMA = (3, 25)
"""The newest export schema that was tried (nsys 2026.2)."""

PRIVATE = ("META_DATA_CAPTURE", "ProcessStreams", "TARGET_INFO_SYSTEM_ENV")
"""Tables with the target's environment, output and system: never read, not even counted."""

UNREADABLE = (sqlite3.Error, MemoryError, OverflowError, TypeError, ValueError)
"""Errors of reading a damaged file: text that is none, numbers and sizes that are too large."""

_FACTS = {
    "version": ("EXPORT_PRODUCT_VERSION", "PRODUCT_VERSION"),
    "schema": ("EXPORT_SCHEMA_VERSION", "SCHEMA_VERSION"),
}
_MARKERS = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "StringIds", "OSRT_API", "TARGET_INFO_", "GPU_METRICS")
_KNOWN = {
    name.lower(): name
    for name in (
        *(what.table for what in IMPORTS),
        *("StringIds", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_GPU_METRICS"),
        *("META_DATA_EXPORT", "EXPORT_META_DATA"),
        *PRIVATE,
    )
}
"""Names of the tables that are read, or never, by their lower-case ones."""
_SESSION = "TARGET_INFO_SESSION_START_TIME"
_VERSION = re.compile(r"_v\d+$")
_SQLITE_MAGIC = b"SQLite format 3\0"
_SQLITE_HEADER_BYTES = 100


@dataclass
class Export:
    """An opened export: what it holds, not yet its rows. A context manager."""

    path: Path
    connection: sqlite3.Connection
    columns: dict[str, dict[str, str]]
    """The real names of each table's columns by their lower-case ones."""
    counts: dict[str, int]
    """Rows by table, as SQLite counts them; without the private tables."""
    actual: dict[str, str] = field(default_factory=dict)
    """Return a table's name in the file where it is a variant: NVTX_EVENTS_V2, in another case."""
    unread: list[str] = field(default_factory=list)
    """Views and further variants that bear the name of a table that is read."""
    unnamed: set[int] = field(default_factory=set)
    """Ids that were looked up in StringIds and are not there."""
    facts: dict[str, str] = field(default_factory=dict)
    session_start_ns: int | None = None
    _stat: tuple[int, int] = (0, 0)
    _names: dict[int | None, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def uri(self) -> str:
        """For any SQLite client, read-only."""
        return uri_of(self.path)

    def sql(self, table: str) -> str:
        """A table's name in the file, for SQL."""
        return f'"{self.actual.get(table, table)}"'

    def has_name(self, string_id: int) -> bool:
        """Say whether StringIds has the text of an id."""
        return self._text(string_id) is not None

    def name(self, string_id: int | None) -> str:
        """The text of an id in StringIds; `#ID` if there is none. Old exports' text that is no UTF-8 is patched."""
        found = self._names.get(string_id)
        if found is None:
            text = None if string_id is None else self._text(string_id)
            if text is None and string_id is not None:
                self.unnamed.add(string_id)
            found = self._names[string_id] = f"#{string_id}" if text is None else text
        return found

    def _text(self, string_id: int) -> str | None:
        if "StringIds" not in self.columns:
            return None
        row = self.row(f"SELECT value FROM {self.sql('StringIds')} WHERE id = ?", string_id)
        return None if row is None or row[0] is None else str(row[0])

    def row(self, sql: str, value: int) -> tuple[Any, ...] | None:
        """The first row of a query with one parameter. From any thread."""
        with self._lock:
            row: tuple[Any, ...] | None = self.connection.execute(sql, [value]).fetchone()
            return row

    def check_unchanged(self) -> None:
        """Raise if the file changed since it was opened: it was still being written."""
        if _fingerprint(self.path) != self._stat:
            raise KvtraceError(f"{self.path} changed while it was read: wait for nsys to finish it, then ingest again")

    def schema_warning(self) -> str | None:
        """Return a warning about a schema newer than any that was tried."""
        version = self.facts.get("schema", "")
        try:
            found = tuple(int(part) for part in version.split(".")[:2])
        except ValueError:
            found = ()
        if version and (not found or found > NEWEST_SCHEMA):
            tried = ".".join(map(str, NEWEST_SCHEMA))
            writer = self.facts.get("version", "unknown")
            return (
                f"{self.path.name} has export schema {version} (nsys {writer}); this kvtrace was tried up to {tried}. "
                "Columns are found by name; compare the row counts in table source_table"
            )
        return None

    def __enter__(self) -> Export:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()


def uri_of(path: Path) -> str:
    """SQLite's URI of a file, to be opened read-only."""
    return f"file:{quote(str(path.resolve()))}?mode=ro"


def open_export(path: Path) -> Export:
    """Open an export and read what it holds.

    Raises:
        KvtraceError: It is missing, no SQLite, a report that was not exported, truncated, locked, empty, or of
            something else than Nsight Systems.
    """
    _check_file(path)
    stat = _fingerprint(path)
    try:
        connection = sqlite3.connect(uri_of(path), uri=True, timeout=1, check_same_thread=False)
    except sqlite3.Error as error:
        raise damaged(path, error) from error
    try:
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        export = Export(path, connection, {}, {}, _stat=stat)
        _read_contents(export)
        if not any(name.startswith(_MARKERS) for name in export.columns):
            found = ", ".join(sorted(export.columns)[:4]) or "no table at all"
            raise KvtraceError(
                f"{path} is a SQLite database, but no Nsight Systems export: it has {found}. Make one with: "
                "nsys export --type sqlite REPORT.nsys-rep"
            )
        if not any(count for name, count in export.counts.items() if not name.startswith("ENUM_")):
            raise KvtraceError(f"{path} is an empty export: none of its tables has a row; was anything profiled?")
        _read_facts(export)
    except UNREADABLE as error:
        connection.close()
        raise damaged(path, error) from error
    except BaseException:
        connection.close()
        raise
    return export


def damaged(path: Path, error: BaseException) -> KvtraceError:
    """Return the error to raise when SQLite cannot read a file."""
    text = " ".join(str(error).split())[:200] or "out of memory"
    if "locked" in text or "busy" in text:
        return KvtraceError(f"{path} is locked: another program is writing it. Wait for it to end, then ingest again")
    return KvtraceError(
        f"{path} cannot be read as a Nsight Systems export: SQLite says: {text}. It may be truncated or damaged; make "
        "it again with: nsys export --type sqlite --force-overwrite true REPORT.nsys-rep"
    )


def _check_file(path: Path) -> None:
    try:
        if path.is_dir():
            raise KvtraceError(f"{path} is a directory; expected an Nsight Systems export (.sqlite)")
        with path.open("rb") as file:
            header = file.read(_SQLITE_HEADER_BYTES)
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise KvtraceError(f"{path} does not exist; expected an Nsight Systems export (.sqlite)") from error
    except OSError as error:
        raise KvtraceError(f"cannot read {path}: {error.strerror}") from error
    if path.suffix in (".nsys-rep", ".qdrep", ".qdstrm"):
        raise KvtraceError(
            f"{path} is a Nsight Systems report, not an export. Export it first, then ingest the .sqlite: "
            f"nsys export --type sqlite {path}"
        )
    if not header:
        raise KvtraceError(f"{path} is empty: was the export interrupted? Make it again with nsys export --type sqlite")
    if not header.startswith(_SQLITE_MAGIC) or len(header) < _SQLITE_HEADER_BYTES:
        raise KvtraceError(
            f"{path} is no SQLite database (it starts with {header[:12]!r}); expected what this makes: "
            "nsys export --type sqlite REPORT.nsys-rep"
        )
    _check_whole(path, header, size)


def _check_whole(path: Path, header: bytes, size: int) -> None:
    for suffix in ("-journal", "-wal"):
        beside = path.with_name(path.name + suffix)
        if beside.exists() and beside.stat().st_size:
            raise KvtraceError(
                f"{path} is still being written, or its writer died: {beside.name} lies beside it. Wait for nsys to "
                "finish, or export it again"
            )
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    expected = page_bytes * int.from_bytes(header[28:32], "big")
    counts_are_valid = header[24:28] == header[92:96]
    if counts_are_valid and size < expected:
        raise KvtraceError(
            f"{path} is truncated: it has {size:,} bytes, its header says {expected:,}. Copy or export it again"
        )


def _fingerprint(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return (0, 0)
    return stat.st_size, stat.st_mtime_ns


def _read_contents(export: Export) -> None:
    """Fill what an export holds. A view is not read: what it computes may have no end."""
    database = sqlite_utils.Database(export.connection, execute_plugins=False)
    names = database.table_names()
    for actual in sorted(names, key=lambda name: _known(name) != name):  # exact names first
        known = _known(actual)
        table = known if known is not None and known not in export.columns else actual
        if table != known and known is not None:
            export.unread.append(actual)
        if table != actual:
            export.actual[table] = actual
        export.columns[table] = {column.name.lower(): column.name for column in database[actual].columns}
        if known not in PRIVATE:
            export.counts[table] = database[actual].count
    export.unread += [name for name in database.view_names() if _known(name) is not None]


def _known(name: str) -> str | None:
    """The table of which a name is a variant, if it is one that is read."""
    lower = name.lower()
    return _KNOWN.get(lower) or _KNOWN.get(_VERSION.sub("", lower))


def _read_facts(export: Export) -> None:
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if {"name", "value"} <= export.columns.get(table, {}).keys():
            rows = dict(export.connection.execute(f"SELECT name, value FROM {export.sql(table)}").fetchall())
            for fact, keys in _FACTS.items():
                value = next((rows[key] for key in keys if rows.get(key)), None)
                if value is not None:
                    export.facts.setdefault(fact, str(value))
    if "utcepochns" in export.columns.get(_SESSION, {}):
        row = export.connection.execute(f"SELECT utcEpochNs FROM {export.sql(_SESSION)}").fetchone()
        if row is not None and isinstance(row[0], int) and row[0] > 0:
            export.session_start_ns = row[0]
