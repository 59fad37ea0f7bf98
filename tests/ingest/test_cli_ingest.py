"""`kvtrace ingest` as a user meets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CLI = [sys.executable, "-c", "from kvtrace.cli.main import main; main()"]


def kvtrace(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLI, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_it_ends_with_rows_and_joins(small_run: Path) -> None:
    result = kvtrace("ingest", small_run)
    assert result.returncode == 0, result.stderr
    assert (small_run / "trace.duckdb").exists()
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["block_event", "100", "0", "0"] in lines
    assert ["block_event", "->", "request_queued", "100", "0"] in lines
    assert "101 records" in result.stdout
    assert result.stderr == ""


def test_output_goes_where_told(small_run: Path, tmp_path: Path) -> None:
    assert kvtrace("ingest", small_run, "-o", tmp_path / "t.duckdb").returncode == 0
    assert (tmp_path / "t.duckdb").exists()
    assert not (small_run / "trace.duckdb").exists()


def test_warnings_go_to_stderr(small_run: Path) -> None:
    (small_run / "manifest.json").unlink()
    result = kvtrace("ingest", small_run)
    assert result.returncode == 0
    assert result.stderr.startswith("warning: ")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("x"), "is a file, not a run directory"),
        (lambda path: path.mkdir(), "is not a run directory"),
        (lambda path: (path / "processes").mkdir(parents=True), "holds no recorded process"),
    ],
)
def test_a_wrong_run_is_one_clear_line(tmp_path: Path, make: object, message: str) -> None:
    run = tmp_path / "somewhere"
    make(run)  # type: ignore[operator]
    result = kvtrace("ingest", run)
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"kvtrace: {run} {message}")
