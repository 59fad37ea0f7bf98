"""An exported folder read as a trace: the same answers, one run at a time, and nothing but its files."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from kvtrace.errors import KvtraceError
from kvtrace.export.parquet import export_parquet
from kvtrace.queries import Trace, catalogue
from kvtrace.queries.backends.choose import open_with
from tests.synthetic import BENCH, build_small
from tests.traces import joins


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace that has what every query needs, exported as run `a`."""
    folder = tmp_path_factory.mktemp("synthetic")
    build_small(folder / "trace.duckdb")
    export_parquet(folder / "trace.duckdb", folder / "lake", run="a")
    return folder


def test_a_folder_answers_every_query_as_its_trace_does(synthetic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    from same_answers import difference

    unlike: dict[str, str | None] = {}
    with Trace(synthetic / "trace.duckdb") as trace, open_with(synthetic / "lake") as lake:
        for name in catalogue():
            found = difference(trace.query(name, format="arrow"), lake.query(name, format="arrow"))
            if found or trace.missing(name) != lake.missing(name):
                unlike[name] = found
    assert not unlike


def test_an_asof_join_never_compares_all_rows(synthetic: Path) -> None:
    """DuckDB would where it expects few rows, and behind views it expects far too few."""
    plan = (
        "EXPLAIN SELECT count(*) FROM (FROM request_queued LIMIT 9) q ASOF JOIN step_schedule s "
        "ON q.engine_id = s.engine_id AND q.time_ns >= s.start_ns"
    )
    with duckdb.connect(str(synthetic / "trace.duckdb"), read_only=True) as connection:
        assert joins(connection.execute(plan).fetchall()) == {"NESTED_LOOP_JOIN"}
    with Trace(synthetic / "trace.duckdb") as trace, open_with(synthetic / "lake") as lake:
        for opened in (trace, lake):
            assert joins(opened.sql(plan, format="arrow").to_pylist()) == {"ASOF_JOIN"}


def test_sql_over_a_folder_reads_nothing_else(synthetic: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with open_with(synthetic / "lake") as lake:
        for sql in (f"FROM '{tmp_path / 'secret.csv'}'", f"FROM read_text('{synthetic / 'trace.duckdb'}')"):
            with pytest.raises(KvtraceError, match=r"read nothing but the trace|disabled"):
                lake.sql(sql)


def test_which_run_is_clear_or_asked_for(synthetic: Path, tmp_path: Path) -> None:
    for run in ("one", "two"):
        (tmp_path / f"manifest-{run}.json").write_text(
            (synthetic / "lake" / "manifest-a.json").read_text().replace('"run_id": "a"', f'"run_id": "{run}"')
        )
    with pytest.raises(KvtraceError, match="several runs, name one with --run-id: one, two"):
        open_with(tmp_path)
    with pytest.raises(KvtraceError, match="no run three; it has one, two"):
        open_with(tmp_path, run="three")
    with open_with(tmp_path, run="two") as lake:  # a table whose files are gone is an empty one
        assert lake.query("run-setting", format="arrow").num_rows == 0


@pytest.mark.parametrize(
    ("manifest", "complaint"),
    [
        ({"kvtrace_export": "parquet", "run_id": "a", "run": {"trace_version": "1"}, "rows": {}}, "trace version 1"),
        ({"kvtrace_export": "csv", "run_id": "a"}, "does not belong to a Parquet export"),
        ({"kvtrace_export": "parquet", "run_id": "../b"}, "does not belong to a Parquet export"),
        ({}, "not a manifest of kvtrace"),
    ],
)
def test_a_folder_that_is_no_export_is_refused(tmp_path: Path, manifest: dict[str, object], complaint: str) -> None:
    (tmp_path / "manifest-a.json").write_text(json.dumps(manifest))
    with pytest.raises(KvtraceError, match=complaint):
        open_with(tmp_path)


@pytest.mark.parametrize(
    ("engine", "path", "run", "complaint"),
    [
        ("trino", "lake", None, "expected duckdb, spark or spark=MASTER"),
        ("duckdb=x", "lake", None, "expected duckdb, spark or spark=MASTER"),
        ("spark", "trace.duckdb", None, "is a file; --engine spark reads the folder"),
        ("spark", ".", None, "has no manifest"),
        ("duckdb", "trace.duckdb", "a", "--run-id goes with a folder"),
    ],
)
def test_a_wrong_engine_or_path_says_what_goes(
    synthetic: Path, engine: str, path: str, run: str | None, complaint: str
) -> None:
    with pytest.raises(KvtraceError, match=complaint):
        open_with(synthetic / path, engine, run)
