"""A trace is replaced whole or not at all."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from kvtrace.errors import KvtraceError
from kvtrace.ingest.derive import requests
from kvtrace.ingest.run import ingest
from tests.record.processes import KVTRACE

ROOT = Path(__file__).parents[2]


def leftovers(trace: Path) -> list[str]:
    return sorted(path.name for path in trace.parent.iterdir() if path.name.startswith(trace.name) and path != trace)


def test_ingesting_again_replaces_the_trace(small_run: Path, query: Callable) -> None:
    first = ingest(small_run).target
    inode = first.stat().st_ino
    reader = query(first)
    assert ingest(small_run).target.stat().st_ino != inode
    assert reader("SELECT count(*) FROM block_event") == [(100,)]  # one that was open goes on with the old file
    assert leftovers(first) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
def test_a_failed_ingest_leaves_the_old_trace(
    small_run: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    trace = ingest(small_run).target
    before = trace.read_bytes()

    def fail(connection: object) -> None:
        raise error

    monkeypatch.setattr(requests, "count_joins", fail)
    with pytest.raises(error):
        ingest(small_run)
    assert trace.read_bytes() == before
    assert leftovers(trace) == []


def test_a_trace_with_a_stale_write_ahead_log_is_replaced_with_it(small_run: Path, query: Callable) -> None:
    trace = ingest(small_run).target
    wal = trace.with_name("trace.duckdb.wal")
    code = f"""
import duckdb, os
connection = duckdb.connect({str(trace)!r})
connection.execute("CREATE TABLE x (i INT)")
connection.execute("INSERT INTO x VALUES (1)")
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert wal.exists()
    ingest(small_run)
    assert not wal.exists()
    assert query(trace)("SELECT count(*) FROM block_event") == [(100,)]


@pytest.fixture
def generated(tmp_path: Path) -> Path:
    """A recording that takes a second or two to ingest."""
    run = tmp_path / "generated"
    subprocess.run([sys.executable, str(ROOT / "bench" / "generate.py"), str(run), "--records", "4000000"], check=True)
    return run


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_the_old_trace(generated: Path, small_run: Path, signum: int) -> None:
    trace = generated / "trace.duckdb"
    shutil.copy(ingest(small_run).target, trace)
    before = trace.read_bytes()
    process = subprocess.Popen(
        [*KVTRACE, "ingest", str(generated)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    wait_until_partly_written(process, generated)
    process.send_signal(signum)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip() == f"kvtrace: interrupted; {trace} is as it was before"
    assert trace.read_bytes() == before
    assert leftovers(trace) == []


def test_what_a_killed_ingest_left_is_cleared_away_by_the_next(generated: Path) -> None:
    trace = generated / "trace.duckdb"
    process = subprocess.Popen([*KVTRACE, "ingest", str(generated)])
    wait_until_partly_written(process, generated)
    # WHEN another ingest comes meanwhile, it is told so
    with pytest.raises(KvtraceError, match="being written by another `kvtrace ingest`"):
        ingest(generated)
    process.kill()
    process.wait()
    assert not trace.exists()
    assert leftovers(trace)
    assert ingest(generated).records == 4_000_000
    assert leftovers(trace) == []


def wait_until_partly_written(process: subprocess.Popen, run: Path) -> None:
    partial = run / "trace.duckdb.partial"
    while process.poll() is None:
        if partial.exists() and partial.stat().st_size > 1 << 20:
            return
    raise AssertionError("the ingest ended too early for the test")


class TestTargets:
    def test_a_foreign_file_is_not_overwritten(self, small_run: Path, tmp_path: Path) -> None:
        foreign = tmp_path / "notes.txt"
        foreign.write_text("dear diary")
        with pytest.raises(KvtraceError, match=r"notes.txt exists and is not a kvtrace trace"):
            ingest(small_run, foreign)
        assert foreign.read_text() == "dear diary"

    @pytest.mark.parametrize("module", [duckdb, sqlite3])
    def test_a_foreign_database_is_not_overwritten(self, small_run: Path, tmp_path: Path, module: object) -> None:
        foreign = tmp_path / "mine.duckdb"
        connection = module.connect(str(foreign))  # type: ignore[attr-defined]
        connection.execute("CREATE TABLE run (key VARCHAR)")
        connection.close()
        before = foreign.read_bytes()
        with pytest.raises(KvtraceError, match=r"mine.duckdb exists and is not a kvtrace trace"):
            ingest(small_run, foreign)
        assert foreign.read_bytes() == before

    def test_a_directory_that_is_missing_or_a_file(self, small_run: Path, tmp_path: Path) -> None:
        with pytest.raises(KvtraceError, match="nowhere is no directory"):
            ingest(small_run, tmp_path / "nowhere" / "t.duckdb")
        with pytest.raises(KvtraceError, match="exists and is not a kvtrace trace"):
            ingest(small_run, tmp_path)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_directory_that_is_not_writable(self, small_run: Path, tmp_path: Path) -> None:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o555)
        with pytest.raises(KvtraceError, match="closed is not writable"):
            ingest(small_run, closed / "t.duckdb")

    def test_a_place_that_takes_no_files(self, small_run: Path) -> None:
        with pytest.raises(KvtraceError, match=r"/t.duckdb was not made|not writable"):
            ingest(small_run, Path("/proc/self/t.duckdb"))

    def test_a_trace_that_another_process_writes(self, small_run: Path) -> None:
        trace = ingest(small_run).target
        code = f"import duckdb, sys; c = duckdb.connect({str(trace)!r}); print('open', flush=True); sys.stdin.read()"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        other = subprocess.Popen([sys.executable, "-c", code], text=True, **pipes)
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(KvtraceError, match=r"trace.duckdb is open for writing elsewhere"):
            ingest(small_run)
        other.communicate()

    def test_the_library_works_on_a_link(self, small_run: Path, tmp_path: Path, query: Callable) -> None:
        link, real = tmp_path / "link.duckdb", tmp_path / "real.duckdb"
        ingest(small_run, real)
        link.symlink_to(real)
        ingest(small_run, link)
        assert link.is_symlink()
        assert query(real)("SELECT count(*) FROM block_event") == [(100,)]
