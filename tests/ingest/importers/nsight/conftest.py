"""Nsight exports: real ones where they are, and small ones made with sqlite3."""

from __future__ import annotations

import lzma
import os
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kvtrace.ingest.run import Summary, ingest
from kvtrace.ingest.sources import Sources

ROOT = Path(__file__).parents[4]
DATA = Path(os.environ.get("KVTRACE_NSIGHT_DATA", ROOT.parent / "shared" / "data" / "nsight"))

PID, TID, OTHER_TID = 100, 101, 102
EPOCH_NS = 1_700_000_000_000_000_000


def global_tid(tid: int = TID, pid: int = PID) -> int:
    return (1 << 48) | (pid << 24) | tid


class SmallExport:
    """An export with the tables and columns it is told to have; unnamed columns stay NULL."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = sqlite3.connect(path)
        self.strings: dict[str, int] = {}
        self.db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.db.execute("INSERT INTO StringIds VALUES (?, ?)", [self.strings[text], text])
        return self.strings[text]

    def rows(self, table: str, rows: Iterable[dict[str, Any]]) -> SmallExport:
        for row in rows:
            columns = [f'"{name}"' for name in row]
            self.db.execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)})")
            existing = {found[1] for found in self.db.execute(f"PRAGMA table_info({table})")}
            for name in row:
                if name not in existing:
                    self.db.execute(f'ALTER TABLE {table} ADD COLUMN "{name}"')
            self.db.execute(
                f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(row))})", list(row.values())
            )
        self.db.commit()
        return self

    def epoch(self, utc_ns: int = EPOCH_NS) -> SmallExport:
        return self.rows("TARGET_INFO_SESSION_START_TIME", [{"utcEpochNs": utc_ns}])

    def version(self, product: str, schema: str) -> SmallExport:
        facts = {"EXPORT_PRODUCT_VERSION": product, "EXPORT_SCHEMA_VERSION": schema}
        return self.rows("META_DATA_EXPORT", [{"name": name, "value": value} for name, value in facts.items()])

    def call(
        self, start: int, correlation: int, *, name: str = "cudaLaunchKernel_v7000", tid: int = TID, **more: Any
    ) -> SmallExport:
        row = {"start": start, "end": start + 10, "eventClass": 0, "globalTid": global_tid(tid)}
        row |= {"correlationId": correlation, "nameId": self.string(name), "returnValue": 0}
        return self.rows("CUPTI_ACTIVITY_KIND_RUNTIME", [row | more])

    def kernel(self, start: int, end: int, correlation: int, name: str = "void f(int)", **more: Any) -> SmallExport:
        row = {"start": start, "end": end, "deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": correlation}
        row |= {"globalPid": global_tid(0), "demangledName": self.string(name), "shortName": self.string(name[:8])}
        return self.rows("CUPTI_ACTIVITY_KIND_KERNEL", [row | more])

    def kvtrace_domain(self) -> SmallExport:
        row = {"start": 0, "end": None, "eventType": 75, "text": "kvtrace", "globalTid": global_tid(), "domainId": 3}
        return self.rows("NVTX_EVENTS", [row | {"textId": None, "int64Value": None}])

    def range(
        self, name: str, start: int, end: int | None, payload: int, *, domain: int = 3, tid: int = TID
    ) -> SmallExport:
        row = {"start": start, "end": end, "eventType": 34 if end is None else 59, "text": None}
        row |= {"globalTid": global_tid(tid), "domainId": domain, "textId": self.string(name), "int64Value": payload}
        return self.rows("NVTX_EVENTS", [row])


@pytest.fixture
def export(tmp_path: Path) -> SmallExport:
    return SmallExport(tmp_path / "profile.sqlite")


Ask = Callable[[str], list[tuple[Any, ...]]]


def ask_of(trace: Path) -> Ask:
    def ask(sql: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(trace), read_only=True) as connection:
            return connection.execute(sql).fetchall()

    return ask


class Ingested:
    """A trace, what ingesting it said, and a way to look into it."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary
        self.trace = summary.target
        self.ask = ask_of(summary.target)


def ingest_export(path: Path, target: Path, run: Path | None = None) -> Ingested:
    return Ingested(ingest(run, target, sources=Sources(nsight=(path,))))


@pytest.fixture
def ingested(export: SmallExport, tmp_path: Path) -> Callable[..., Ingested]:
    """Ingest the small export, beside a recording if one is given."""
    return lambda run=None: ingest_export(export.path, tmp_path / "trace.duckdb", run)


def real_exports() -> list[Path]:
    return sorted(DATA.glob("*.sqlite.xz")) if DATA.is_dir() else []


@pytest.fixture(scope="session")
def unpack(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    folder = tmp_path_factory.mktemp("exports")

    def unpacked(packed: Path) -> Path:
        path = folder / packed.name.removesuffix(".xz")
        if not path.exists():
            path.write_bytes(lzma.decompress(packed.read_bytes()))
        return path

    return unpacked
