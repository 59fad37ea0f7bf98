"""Damaged exports: one clear line that says what to do, and no trace, or the old one; never a crash."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtrace.errors import KvtraceError
from kvtrace.ingest.run import ingest
from kvtrace.ingest.sources import Sources
from kvtrace.queries import Trace

from .conftest import EPOCH_NS, Ingested, SmallExport, ingest_export, real_exports


def refuse(path: Path, *parts: str) -> str:
    """Ingesting `path` fails with a message that has these parts, and leaves nothing behind."""
    target = path.parent / "out" / "trace.duckdb"
    target.parent.mkdir(exist_ok=True)
    with pytest.raises(KvtraceError) as raised:
        ingest_export(path, target)
    message = str(raised.value)
    assert str(path) in message
    for part in parts:
        assert part in message, message
    assert list(target.parent.iterdir()) == []
    assert len(message) < 500
    return message


@pytest.fixture
def whole(export: SmallExport) -> Path:
    """An export of some pages, with every kind of table."""
    export.epoch().version("2025.5.1.121", "3.23.3").kvtrace_domain()
    for step in range(1, 40):
        export.range("forward", step * 1000, step * 1000 + 900, step).call(step * 1000 + 5, step)
        export.kernel(step * 1000 + 400, step * 1000 + 700, step, f"void kernel_{step % 7}<int>(T1, a long argument)")
    export.rows("PROCESSES", [{"globalPid": 1 << 48, "pid": 1, "name": "python"}] * 40)
    export.db.close()
    return export.path


class TestMessages:
    def test_a_missing_file(self, tmp_path: Path) -> None:
        refuse(tmp_path / "no.sqlite", "does not exist")

    def test_a_directory(self, tmp_path: Path) -> None:
        (tmp_path / "runs").mkdir()
        refuse(tmp_path / "runs", "is a directory")

    def test_a_report_that_was_not_exported(self, tmp_path: Path) -> None:
        path = tmp_path / "report1.nsys-rep"
        path.write_bytes(b"\x13nsys" * 1000)
        refuse(path, "nsys export --type sqlite", "report1.nsys-rep", "not an export")

    def test_an_empty_file(self, tmp_path: Path) -> None:
        path = tmp_path / "empty.sqlite"
        path.write_bytes(b"")
        refuse(path, "is empty")

    def test_no_sqlite(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.sqlite"
        path.write_bytes(b"PK\x03\x04" * 100)
        refuse(path, "no SQLite database", "nsys export")

    def test_another_sqlite_database(self, tmp_path: Path) -> None:
        path = tmp_path / "places.sqlite"
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE moz_places (id INTEGER)")
        refuse(path, "no Nsight Systems export", "moz_places")

    def test_an_export_without_rows(self, export: SmallExport) -> None:
        export.db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end)")
        export.db.commit()
        refuse(export.path, "empty export", "profiled")

    def test_a_truncated_one(self, whole: Path) -> None:
        size = whole.stat().st_size
        with whole.open("r+b") as file:
            file.truncate(size - 1)
        refuse(whole, "truncated", f"{size - 1:,}", f"{size:,}")

    def test_one_that_is_still_being_written(self, whole: Path) -> None:
        whole.with_name(whole.name + "-journal").write_bytes(b"x" * 600)
        refuse(whole, "still being written", "-journal")

    def test_one_that_is_locked(self, whole: Path) -> None:
        writer = sqlite3.connect(whole, isolation_level=None)
        writer.execute("PRAGMA journal_mode = OFF")
        writer.execute("BEGIN EXCLUSIVE")
        try:
            refuse(whole, "locked", "Wait")
        finally:
            writer.close()

    def test_one_that_changes_while_it_is_read(self, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from kvtrace.ingest.importers.nsight import load

        read = load.import_table

        def and_grow(*arguments: object) -> int:
            with whole.open("ab") as file:
                file.write(bytes(4096))
            return read(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(load, "import_table", and_grow)
        refuse(whole, "changed while it was read")

    def test_text_where_a_number_should_be(self, export: SmallExport) -> None:
        export.epoch().call(1, 1).kernel("soon", 2, 1)  # type: ignore[arg-type]
        refuse(export.path, "CUPTI_ACTIVITY_KIND_KERNEL", "make it again")

    def test_the_same_file_twice(self, whole: Path, tmp_path: Path) -> None:
        with pytest.raises(KvtraceError, match="given twice"):
            ingest(None, tmp_path / "t.duckdb", sources=Sources(nsight=(whole, whole)))


class TestTolerance:
    def test_a_newer_schema_is_read_with_a_warning(
        self, export: SmallExport, ingested: Callable[..., Ingested]
    ) -> None:
        export.epoch().version("2031.1.1", "4.2.0").kernel(1, 2, 1)
        found = ingested()
        assert found.ask("SELECT count(*) FROM gpu_kernel") == [(1,)]
        (warning,) = (text for text in found.summary.warnings if "schema" in text)
        assert "4.2.0" in warning
        assert "2031.1.1" in warning
        assert "3.25" in warning

    def test_text_that_is_no_utf_8(self, export: SmallExport, ingested: Callable[..., Ingested]) -> None:
        export.epoch().kernel(1, 2, 1, "good").range("x", 1, 2, 3)
        export.db.execute("UPDATE StringIds SET value = CAST(x'6bff6e' AS TEXT) WHERE value = 'good'")
        export.db.execute("UPDATE NVTX_EVENTS SET text = CAST(x'ff6e' AS TEXT), textId = NULL")
        export.db.commit()
        found = ingested()
        assert found.ask("SELECT demangled_name FROM gpu_kernel") == [("k\ufffdn",)]
        assert found.ask("SELECT name FROM nvtx") == [("\ufffdn",)]

    def test_columns_that_change_their_type_after_many_rows(
        self, export: SmallExport, ingested: Callable[..., Ingested]
    ) -> None:
        """A reader that types a column by its first rows must not trip over later ones."""
        export.epoch()
        rows = [
            {"start": n, "end": n + 1, "eventType": 59, "text": "late" if n == 39_999 else None, "globalTid": 1 << 24}
            | {"doubleValue": 2.5 if n == 39_998 else None, "int64Value": n if n > 39_000 else None}
            for n in range(40_000)
        ]
        export.rows("NVTX_EVENTS", rows[:1])
        export.db.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (:start, :end, :eventType, :text, :globalTid, :doubleValue, :int64Value)",
            rows[1:],
        )
        export.db.commit()
        found = ingested()
        assert found.ask("SELECT name, payload FROM nvtx WHERE name IS NOT NULL") == [("late", 39_999)]
        assert found.ask("SELECT payload_real, payload FROM nvtx WHERE payload_real IS NOT NULL") == [(2.5, 39_998)]
        assert found.ask("SELECT count(*), max(start_ns) FROM nvtx") == [(40_000, EPOCH_NS + 39_999)]

    def test_a_table_without_row_ids(self, export: SmallExport, ingested: Callable[..., Ingested]) -> None:
        columns = "start INTEGER PRIMARY KEY, end, shortName, correlationId"
        export.epoch().db.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({columns}) WITHOUT ROWID")
        export.rows("CUPTI_ACTIVITY_KIND_KERNEL", [{"start": 5, "end": 9, "shortName": export.string("f")}])
        assert ingested().ask("SELECT name, duration_ns FROM gpu_kernel") == [("f", 4)]

    def test_an_old_trace_stays_when_a_new_one_cannot_be_made(self, whole: Path, tmp_path: Path) -> None:
        target = tmp_path / "trace.duckdb"
        ingest_export(whole, target)
        before = target.read_bytes()
        with whole.open("r+b") as file:
            file.truncate(5000)
        with pytest.raises(KvtraceError):
            ingest_export(whole, target)
        assert target.read_bytes() == before
        assert {path.name for path in tmp_path.iterdir()} == {"profile.sqlite", "trace.duckdb"}


PROPERTY = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def is_a_trace_or_refused(path: Path, folder: Path) -> None:
    target = folder / "trace.duckdb"
    error = None
    try:
        ingest_export(path, target)
    except KvtraceError as raised:
        error = raised
    if error is None:
        with Trace(target) as trace:
            trace.query("top-kernels", format="arrow")
    else:
        assert str(path) in str(error)
        assert [found.name for found in folder.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "packed", [path for path in real_exports() if path.stat().st_size < 70_000], ids=lambda p: p.name[:12]
)
def test_real_exports_cut_anywhere(packed: Path, unpack: Callable[[Path], Path], tmp_path: Path) -> None:
    whole = unpack(packed).read_bytes()
    path = tmp_path / "cut.sqlite"
    for tenth in range(10):
        path.write_bytes(whole[: len(whole) * tenth // 10 + 17])
        with pytest.raises(KvtraceError, match=str(path)):
            ingest_export(path, tmp_path / "trace.duckdb")
        assert [found.name for found in tmp_path.iterdir()] == ["cut.sqlite"]


class TestAnyDamage:
    @given(cut=st.floats(0, 1, exclude_max=True))
    @PROPERTY
    def test_truncated_anywhere(self, whole: Path, cut: float) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            path = folder / "cut.sqlite"
            path.write_bytes(whole.read_bytes()[: int(whole.stat().st_size * cut)])
            with pytest.raises(KvtraceError):
                ingest_export(path, folder / "trace.duckdb")
            assert [found.name for found in folder.iterdir()] == ["cut.sqlite"]

    @given(offset=st.integers(0, 99), bits=st.integers(1, 255))
    @PROPERTY
    def test_a_flipped_header_byte(self, whole: Path, offset: int, bits: int) -> None:
        self.flip(whole, offset, bits)

    @given(place=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255), length=st.sampled_from([1, 1, 64, 4096]))
    @PROPERTY
    def test_flipped_bytes_anywhere(self, whole: Path, place: float, bits: int, length: int) -> None:
        self.flip(whole, int(whole.stat().st_size * place), bits, length)

    def flip(self, whole: Path, offset: int, bits: int, length: int = 1) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            path = folder / "flipped.sqlite"
            shutil.copy(whole, path)
            data = bytearray(path.read_bytes())
            for at in range(offset, min(offset + length, len(data))):
                data[at] ^= bits
            path.write_bytes(data)
            is_a_trace_or_refused(path, folder)
