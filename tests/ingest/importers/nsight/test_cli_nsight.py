"""`kvtrace ingest --nsight` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ingest.test_cli_ingest import kvtrace

from .conftest import SmallExport


@pytest.fixture
def profile(export: SmallExport) -> Path:
    export.epoch().call(1, 1).kernel(10, 20, 1)
    export.db.close()
    return export.path


def test_alone_it_needs_a_name_for_the_trace(profile: Path, tmp_path: Path) -> None:
    refused = kvtrace("ingest", "--nsight", profile)
    assert refused.returncode == 2
    assert "-o" in refused.stderr
    done = kvtrace("ingest", "--nsight", profile, "-o", tmp_path / "t.duckdb")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["profile.sqlite:", "CUPTI_ACTIVITY_KIND_KERNEL", "1", "1"] in lines
    assert "no row in" not in done.stdout


def test_beside_a_run_with_a_pattern_of_the_shell(profile: Path, small_run: Path, tmp_path: Path) -> None:
    second = SmallExport(tmp_path / "second.sqlite").epoch().kernel(1, 2, 1)
    done = kvtrace("ingest", small_run, "--nsight", profile, second.path)
    assert done.returncode == 0, done.stderr
    assert "second.sqlite" in done.stdout
    asked = kvtrace("query", "top-kernels", small_run / "trace.duckdb", "--format", "csv")
    assert asked.stdout.splitlines()[1].startswith('0,"void f(i","other",2,')


def test_two_runs_are_one_too_many(small_run: Path, tmp_path: Path) -> None:
    result = kvtrace("ingest", small_run, tmp_path)
    assert result.returncode == 2
    assert "expected one run directory" in result.stderr


def test_the_page_of_a_profile_alone(profile: Path, tmp_path: Path) -> None:
    assert kvtrace("ingest", "--nsight", profile, "-o", tmp_path / "t.duckdb").returncode == 0
    viewed = kvtrace("view", tmp_path / "t.duckdb", "-o", tmp_path / "t.html")
    assert viewed.returncode == 0, viewed.stderr
    assert (tmp_path / "t.html").stat().st_size > 10_000
