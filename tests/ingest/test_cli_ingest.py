"""`kvtrace ingest` as a user meets it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.record.processes import KVTRACE


def kvtrace(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*KVTRACE, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_it_ends_with_rows_and_joins_that_left_some_unmatched(small_run: Path) -> None:
    result = kvtrace("ingest", small_run)
    assert result.returncode == 0, result.stderr
    assert (small_run / "trace.duckdb").exists()
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["block_event", "100", "0", "0"] in lines
    assert "request_queued: 1 of 1 rows have no row in request_arrival" in result.stdout
    assert "block_event:" not in result.stdout
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


def test_damage_is_refused_with_advice_and_skipped_when_asked(small_run: Path) -> None:
    (segment,) = small_run.glob("processes/*/block_event.00000.seg")
    segment.write_bytes(b"SQLite format 3\0" * 1000)
    refused = kvtrace("ingest", small_run)
    assert refused.returncode == 1
    assert refused.stderr.rstrip().endswith("; --skip-damaged takes what is whole")
    taken = kvtrace("ingest", small_run, "--skip-damaged")
    assert taken.returncode == 0, taken.stderr
    assert f"warning: left out: {segment} is damaged or no kvtrace segment" in taken.stderr


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("x"), "is a file, not a run directory"),
        (lambda path: path.mkdir(), "is not a run directory"),
        (lambda path: (path / "processes").mkdir(parents=True), "holds no recorded process"),
        (
            lambda path: [
                (path / name).mkdir(parents=True) or (path / name / "manifest.json").touch() for name in "ba"
            ],
            "is not a run directory: it has neither manifest.json nor processes/; name one in it: ",
        ),
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
