"""Opening a trace, and what its SQL may not do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

import kvtrace
from kvtrace.errors import KvtraceError
from kvtrace.queries import Trace
from kvtrace.queries.views import views

from .conftest import MakeTrace

ONE_STEP = """
    INSERT INTO step_schedule (engine_id, step, start_ns, scheduled_ns, decode_tokens) VALUES (1, 1, 1000, 2000, 3);
"""


def test_the_class_is_public_and_its_repr_says_what_it_holds(make_trace: MakeTrace) -> None:
    import kvtrace

    trace = kvtrace.open(make_trace("INSERT INTO request (request, engine_id) VALUES (1, 1), (2, 1)"))

    assert isinstance(trace, kvtrace.Trace)
    assert "2 requests" in repr(trace)
    trace.close()
    assert "closed" in repr(trace)


def test_answers_as_pandas_arrow_or_batches(make_trace: MakeTrace) -> None:
    with kvtrace.open(make_trace(ONE_STEP)) as trace:
        frame = trace.query("step-timeline")
        table = trace.query("step-timeline", format="arrow")
        batches = trace.query("step-timeline", format="batches").read_all()

    assert frame["start_ns"].tolist() == [1000]
    assert table.equals(batches)
    assert table.column("start_ns").to_pylist() == [1000]


def test_answers_as_a_relation_that_goes_on(make_trace: MakeTrace) -> None:
    with kvtrace.open(make_trace(ONE_STEP)) as trace:
        steps = trace.query("step-timeline", format="relation")
        assert steps.filter("decode_tokens = 3").count("*").fetchall() == [(1,)]
        assert trace.sql("SELECT 1 AS one", format="relation").fetchall() == [(1,)]
        with pytest.raises(duckdb.Error):
            steps.write_csv("here.csv")


def test_answers_as_polars(make_trace: MakeTrace) -> None:
    with kvtrace.open(make_trace(ONE_STEP)) as trace:
        polars = pytest.importorskip("polars")
        frame = trace.query("step-timeline", format="polars")
        assert isinstance(frame, polars.DataFrame)
        assert frame["start_ns"].to_list() == trace.sql("SELECT 1000", format="polars").to_series().to_list()


def test_polars_that_is_not_installed_is_advised(make_trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with kvtrace.open(make_trace(ONE_STEP)) as trace, pytest.raises(KvtraceError, match=r"kvtrace\[polars\]"):
        trace.query("step-timeline", format="polars")


def test_queries_are_listed_by_name(make_trace: MakeTrace) -> None:
    with Trace(make_trace()) as trace:
        assert trace.queries()["step-timeline"].title.endswith("?")


def test_parameters_are_typed_or_text(make_trace: MakeTrace) -> None:
    with Trace(make_trace(ONE_STEP)) as trace:
        assert trace.query("step-timeline", format="arrow", engine=1).num_rows == 1
        assert trace.query("step-timeline", format="arrow", engine="2").num_rows == 0
        assert trace.query("step-timeline", format="arrow", engine=None).num_rows == 1
        with pytest.raises(KvtraceError, match="engine: 'one' is not of type INTEGER"):
            trace.query("step-timeline", engine="one")
        with pytest.raises(KvtraceError, match=r"no parameter motor; it takes: engine, first_step, last_step"):
            trace.query("step-timeline", motor=1)
        with pytest.raises(KvtraceError, match=r"no parameter engine; it takes: none"):
            trace.query("preemptions", engine=1)
        with pytest.raises(KvtraceError, match="'excel'; expected one of pandas, polars, arrow, batches, relation"):
            trace.query("step-timeline", format="excel")  # type: ignore[call-overload]


def test_text_parameter_is_only_ever_a_value(make_trace: MakeTrace) -> None:
    tag = "it's; DROP TABLE run --\\ $session"
    lookups = """
        INSERT INTO prefix_lookup (engine_id, request, admitted) VALUES (1, 1, true), (1, 2, true);
        INSERT INTO request (request, session) VALUES (1, 'it''s; DROP TABLE run --\\ $session'), (2, 'other');
    """
    with Trace(make_trace(lookups)) as trace:
        found = trace.query("prefix-hit-rate", format="arrow", session=tag).to_pylist()

    assert [(row["request"], row["session"]) for row in found] == [(1, tag)]


def test_a_query_can_follow_one_whose_batches_were_not_read(make_trace: MakeTrace) -> None:
    with Trace(make_trace(ONE_STEP)) as trace:
        trace.query("step-timeline", format="batches").close()
        assert trace.sql("SELECT 1 AS one", format="arrow").num_rows == 1


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(KvtraceError, match=r"does not exist.*kvtrace ingest"):
        Trace(tmp_path / "none.duckdb")


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(KvtraceError, match=r"is a directory.*kvtrace ingest"):
        Trace(tmp_path)
    for number in range(5):
        (tmp_path / f"run{number}").mkdir()
        (tmp_path / f"run{number}" / "trace.duckdb").touch()
    with pytest.raises(KvtraceError, match=r"without a trace; name one in it: \S+run0, \S+run1, \S+run2 and 2 more$"):
        Trace(tmp_path)


@pytest.mark.parametrize("content", [b"", b"DUCK", b"hello, this is no database at all" * 1000])
def test_file_that_is_no_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.duckdb"
    path.write_bytes(content)
    with pytest.raises(KvtraceError, match="is not a DuckDB database"):
        Trace(path)


def test_damaged_database(make_trace: MakeTrace) -> None:
    path = make_trace()
    path.write_bytes(path.read_bytes()[:5000] + b"\xff" * 4000)
    with pytest.raises(KvtraceError, match=r"DuckDB .* cannot open .*kvtrace ingest"):
        Trace(path)


def test_database_that_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "other.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER)")
    with pytest.raises(KvtraceError, match="not a kvtrace trace: it has no table `run`"):
        Trace(path)


def test_trace_without_version(make_trace: MakeTrace) -> None:
    with pytest.raises(KvtraceError, match="has no trace_version"):
        Trace(make_trace("DELETE FROM run"))


def test_trace_of_another_version_names_both(make_trace: MakeTrace) -> None:
    newer = "UPDATE run SET value = '99'; INSERT INTO run VALUES ('kvtrace_version', '7.5');"
    with pytest.raises(KvtraceError, match=r"version 99 \(made by kvtrace 7\.5\); this kvtrace reads version \d+"):
        Trace(make_trace(newer))


def test_views_that_an_earlier_kvtrace_did_not_make_are_there(make_trace: MakeTrace) -> None:
    """They come without a new trace version. All are dropped, so that some need others that the trace lacks, too."""
    steps = (Path(__file__).parent / "step-regression" / "trace.sql").read_text()
    names = [view.name for view in views() if not view.stored]
    with Trace(make_trace(steps)) as trace:
        whole = [trace.query("step-regression"), *(trace.sql(f"SELECT * FROM {name} ORDER BY ALL") for name in names)]

    path = make_trace(steps)
    with duckdb.connect(str(path)) as connection:
        connection.execute(";".join(f"DROP VIEW {name}" for name in reversed(names)))

    with Trace(path) as trace:
        earlier = [trace.query("step-regression"), *(trace.sql(f"SELECT * FROM {name} ORDER BY ALL") for name in names)]
    for name, again, answer in zip(["step-regression", *names], earlier, whole, strict=True):
        assert again.equals(answer), name
    assert len(earlier[0]) > 0


@pytest.mark.parametrize(
    ("table", "query", "ways"),
    [("cost_model", "preemption-ledger", ("query", "plot")), ("draft", "speculation", ("query", "missing"))],
)
def test_a_trace_without_what_a_query_reads_is_to_be_ingested_again(
    make_trace: MakeTrace, table: str, query: str, ways: tuple[str, ...]
) -> None:
    with Trace(make_trace(f"DROP TABLE {table}")) as trace:
        for way in ways:
            with pytest.raises(KvtraceError, match=rf"^an earlier kvtrace made .* ingest it again \(.*{table}.*\)$"):
                getattr(trace, way)(query)
        with pytest.raises(KvtraceError, match=r"^Catalog Error"):  # not of the trace's age
            trace.sql(f"SELECT * FROM {table}")


def test_trace_open_for_writing_in_this_process(make_trace: MakeTrace) -> None:
    path = make_trace()
    with duckdb.connect(str(path)), pytest.raises(KvtraceError, match="open for writing in this process"):
        Trace(path)


def test_trace_locked_by_another_process(make_trace: MakeTrace) -> None:
    path = make_trace()
    hold = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout
        assert writer.stdout.readline() == "held\n"
        with pytest.raises(KvtraceError, match=rf"being written by another process \(PID {writer.pid}\)"):
            Trace(path)
        writer.communicate("")


def test_readers_share_a_trace(make_trace: MakeTrace) -> None:
    path = make_trace(ONE_STEP)
    read = "import kvtrace, sys; print(len(kvtrace.open(sys.argv[1]).query('step-timeline', format='arrow')))"
    with Trace(path), Trace(path) as second:
        other = subprocess.run([sys.executable, "-c", read, str(path)], capture_output=True, text=True, check=True)
        assert other.stdout == "1\n"
        assert second.query("step-timeline", format="arrow").num_rows == 1


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO run VALUES ('a', 'b')",
        "CREATE TEMP TABLE t (a INTEGER)",
        "DROP TABLE run",
        "COPY run TO '{outside}'",
        "COPY run FROM '{outside}'",
        "EXPORT DATABASE '{outside}'",
        "ATTACH '{outside}'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "LOAD httpfs",
        "EXPLAIN ANALYZE COPY run TO '{outside}'",
        "FROM read_text('{outside}')",
        "FROM read_csv('{outside}')",
        "FROM '{outside}'",
        "FROM glob('/*')",
        "FROM read_text('https://localhost/x')",
        "FROM query('COPY run TO ''{outside}''')",
        "SELECT 1; DROP TABLE run",
        "FROM frame",
        "",
        "SELEC",
    ],
)
def test_sql_can_only_read_the_trace(make_trace: MakeTrace, tmp_path: Path, sql: str) -> None:
    path, outside = make_trace(), tmp_path / "outside.csv"
    outside.write_text("key,value\nsecret,1\n")
    before = path.read_bytes()
    frame = __import__("pandas").DataFrame({"a": [1]})

    with Trace(path) as trace, pytest.raises(KvtraceError):
        trace.sql(sql.format(outside=outside))

    assert len(frame) == 1
    assert path.read_bytes() == before
    assert outside.read_text() == "key,value\nsecret,1\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["outside.csv", "trace.duckdb"]


@pytest.mark.parametrize(
    "sql", ["DESCRIBE run", "SHOW TABLES", "SUMMARIZE run", "EXPLAIN SELECT 1", "FROM run", "SELECT 1;"]
)
def test_sql_that_reads_is_welcome(make_trace: MakeTrace, sql: str) -> None:
    with Trace(make_trace()) as trace:
        assert trace.sql(sql, format="arrow").num_rows


def test_larger_than_memory_results_spill_away_from_the_trace(make_trace: MakeTrace, tmp_path: Path) -> None:
    code = """
import sys, duckdb, kvtrace.queries.trace as t
connect = duckdb.connect
duckdb.connect = lambda *a, config, **k: connect(*a, config=config | {"memory_limit": "60MB", "threads": "1"}, **k)
with t.Trace(sys.argv[1]) as trace:
    sql = "SELECT r, hash(r) AS h FROM range(4000000) t(r) ORDER BY h"
    print(sum(len(batch) for batch in trace.sql(sql, format="batches")), t.spill_directory())
"""
    path = make_trace()
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    rows, spill = done.stdout.split()
    assert rows == "4000000"
    assert not Path(spill).exists()
    assert [file.name for file in tmp_path.iterdir()] == ["trace.duckdb"]


def test_pandas_is_imported_only_for_pandas(make_trace: MakeTrace) -> None:
    code = """
import sys, kvtrace
with kvtrace.open(sys.argv[1]) as trace:
    trace.query("step-timeline", format="arrow")
assert "pandas" not in sys.modules, "pandas was imported"
"""
    done = subprocess.run([sys.executable, "-c", code, str(make_trace())], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
