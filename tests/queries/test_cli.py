"""`kvtrace query` and `kvtrace sql` as a user runs them."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import stat
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from kvtrace.queries import catalogue
from tests.record.processes import KVTRACE

from .conftest import MakeTrace

STEPS = """
    INSERT INTO step_schedule (engine_id, step, start_ns, scheduled_ns, decode_tokens, admission_limit)
    SELECT 1, i, 9007199254740993 + i, 9007199254741993 + i, i, 'none' FROM range(1, 121) t(i);
"""
HOSTILE = (
    "INSERT INTO request (request, arrival_ns, external_id) VALUES (1, 5, chr(27) || '[2J[bold]x' || chr(10) || 'y,\"')"
)


def kvtrace(*arguments: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KVTRACE, *map(str, arguments)], input=stdin, capture_output=True, text=True, check=False, timeout=120
    )


def test_query_alone_lists_every_question() -> None:
    done = kvtrace("query")

    assert done.returncode == 0, done.stderr
    for query in catalogue().values():
        assert f"{query.name} " in done.stdout
        assert query.title.split()[0] in done.stdout


@pytest.mark.parametrize("extra", [[], ["trace-that-is-not-there.duckdb", "--help-query"]])
def test_query_without_trace_is_documentation(extra: list[str]) -> None:
    done = kvtrace("query", "kv-utilisation", *extra)

    assert done.returncode == 0, done.stderr
    for text in ("How full", "Needs: step_schedule", "bucket_ms", "default 0", "cached_free_blocks", "(derived)"):
        assert text in done.stdout


def test_table_aligns_numbers_names_units_and_counts_the_rest(make_trace: MakeTrace) -> None:
    done = kvtrace("query", "step-timeline", make_trace(STEPS), "--limit", "2")

    assert done.returncode == 0, done.stderr
    names, units, rule, *rows = done.stdout.splitlines()
    column = names.index("step") + len("step")
    assert "running" in names
    assert "[requests]" in units
    assert set(rule) == {"-", " "}
    assert [row[:column].split() for row in rows] == [["1", "1"], ["1", "2"]]
    assert "9007199254740994" in rows[0]
    assert "118 more rows" in done.stderr


def test_table_is_limited_unless_told_otherwise(make_trace: MakeTrace) -> None:
    path = make_trace(STEPS)

    assert "70 more rows" in kvtrace("sql", path, "FROM step_schedule").stderr
    everything = kvtrace("sql", path, "FROM step_schedule", "--limit", "0")
    assert everything.stderr == ""
    assert len(everything.stdout.splitlines()) == 1 + 1 + 120


def test_sql_may_be_longer_than_the_name_of_a_file(make_trace: MakeTrace) -> None:
    path, sql = make_trace(), f"SELECT {' + '.join(['1'] * 200)} AS ones"
    for order in ((path, sql), (sql, path)):
        done = kvtrace("sql", *order, "--format", "csv")
        assert done.stdout.split() == ['"ones"', "200"], done.stderr


def test_csv_json_and_parquet_lose_nothing(make_trace: MakeTrace, tmp_path: Path) -> None:
    path = make_trace(HOSTILE)
    sql = (
        "SELECT external_id, NULL::VARCHAR AS nothing, '' AS empty, 18446744073709551615::UBIGINT AS hash, "
        "0.1::DOUBLE + 0.2 AS fraction, 9007199254740993 AS ns, 'free'::e_block_op AS op FROM request"
    )
    hostile = '\x1b[2J[bold]x\ny,"'

    row = next(csv.DictReader(io.StringIO(kvtrace("sql", path, sql, "--format", "csv").stdout)))
    assert row == {
        "external_id": hostile, "nothing": "", "empty": "", "hash": "18446744073709551615",
        "fraction": "0.30000000000000004", "ns": "9007199254740993", "op": "free",
    }  # fmt: skip
    assert ',,"",' in kvtrace("sql", path, sql, "--format", "csv").stdout, "NULL and the empty text differ"
    expected = {
        "external_id": hostile, "nothing": None, "empty": "", "hash": 18446744073709551615,
        "fraction": 0.30000000000000004, "ns": 9007199254740993, "op": "free",
    }  # fmt: skip
    assert json.loads(kvtrace("sql", path, sql, "--format", "json").stdout) == [expected]
    assert kvtrace("sql", path, sql, "-o", tmp_path / "x.parquet").returncode == 0
    assert pyarrow.parquet.read_table(tmp_path / "x.parquet").to_pylist() == [expected]


def test_json_of_no_rows_and_of_odd_values(make_trace: MakeTrace) -> None:
    path = make_trace()

    assert json.loads(kvtrace("query", "step-timeline", path, "--format", "json").stdout) == []
    sql = "SELECT 'nan'::DOUBLE AS a, [1, NULL] AS b, {'x': 1.5} AS c, INTERVAL 3 DAY AS d, 'ab'::BLOB AS e"
    assert json.loads(kvtrace("sql", path, sql, "--format", "json").stdout) == [
        {"a": "nan", "b": [1, None], "c": {"x": "1.5"}, "d": "0 months 3 days 0 ns", "e": "6162"}
    ]
    twice = kvtrace("sql", path, "SELECT 1 AS a, 2 AS a", "--format", "json")
    assert twice.returncode == 1
    assert "two columns are named 'a'" in twice.stderr


def test_limit_holds_for_every_format(make_trace: MakeTrace, tmp_path: Path) -> None:
    path = make_trace(STEPS)

    done = kvtrace("sql", path, "FROM step_schedule", "--format", "json", "--limit", "3")
    assert len(json.loads(done.stdout)) == 3
    assert "117 more rows" in done.stderr
    assert kvtrace("sql", path, "FROM step_schedule", "--limit", "3", "-o", tmp_path / "x.parquet").returncode == 0
    assert pyarrow.parquet.read_table(tmp_path / "x.parquet").num_rows == 3


def test_parameters_reach_the_query(make_trace: MakeTrace) -> None:
    done = kvtrace(
        "query", "step-timeline", make_trace(STEPS), "--param", "first_step=7", "-p", "last_step=8", "-f", "csv"
    )

    assert [row["step"] for row in csv.DictReader(io.StringIO(done.stdout))] == ["7", "8"]


def test_rows_are_sorted_by_a_column_before_they_are_limited(make_trace: MakeTrace) -> None:
    path = make_trace(STEPS + "UPDATE step_schedule SET decode_tokens = NULL WHERE step > 100")

    def steps(order: str) -> list[str]:
        words = ["--order", order, "--limit", "2", "--format", "csv", "--columns", "step"]
        return kvtrace("query", "step-timeline", path, *words).stdout.split()[1:]

    assert steps("decode_tokens") == ["100", "99"]
    assert steps("decode asc") == ["1", "2"], "the unit may be left out"
    assert steps("admission_limit desc") == ["1", "2"], "rows that are alike stay in their order"
    assert steps("running") == ["1", "2"], "so do those without a value"
    for order, complaint in (("tokens", "no column 'tokens'"), ("step up", "expected COLUMN")):
        assert complaint in kvtrace("query", "step-timeline", path, "--order", order).stderr


def test_missing_stream_is_named(make_trace: MakeTrace) -> None:
    done = kvtrace("query", "block-reuse", make_trace(STEPS))

    assert done.returncode == 0
    assert "no rows in block_event" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["query", "kv-utilization", "TRACE"], "did you mean kv-utilisation"),
        (["query", "TRACE"], "name the query first"),
        (["query", "step-timeline", "TRACE", "--param", "engine"], "expected NAME=VALUE"),
        (["query", "step-timeline", "TRACE", "--param", "motor=1"], "it takes: engine, first_step, last_step"),
        (["query", "step-timeline", "TRACE", "--param", "engine=x"], "is not of type INTEGER"),
        (["query", "step-timeline", "TRACE", "--format", "parquet"], "-o FILE"),
        (["query", "step-timeline", "TRACE", "-o", "TRACE"], "the trace itself"),
        (["query", "step-timeline", "TRACE", "-o", "TRACE/x.csv"], "cannot write"),
        (["sql", "TRACE", "DROP TABLE run"], "DROP is not allowed"),
        (["sql", "TRACE", "FROM no_such_table"], "no_such_table"),
        (["sql", "nowhere.duckdb", "SELECT 1"], "does not exist"),
    ],
)
def test_mistake_gets_one_clear_message_and_exit_code_1(
    make_trace: MakeTrace, arguments: list[str], complaint: str
) -> None:
    path = make_trace()
    before = path.read_bytes()

    done = kvtrace(*(argument.replace("TRACE", str(path)) for argument in arguments))

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("kvtrace: ")
    assert complaint in done.stderr
    assert path.read_bytes() == before


def test_a_value_that_a_parameter_does_not_take_is_an_error(make_trace: MakeTrace) -> None:
    done = kvtrace("query", "evictor-victim", make_trace(), "-p", "by=sessions")
    assert done.returncode != 0
    assert "parameter by: 'sessions' is not one of: session, kind, tenant, lora, model, request" in done.stderr


@pytest.mark.parametrize(("typed", "name"), [("kvtrace fin", "findings"), ("kvtrace query hot", "hot-prefixes")])
def test_the_shell_completes_subcommands_and_queries(typed: str, name: str) -> None:
    asked = {"_KVTRACE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    command = [sys.executable, "-c", "from kvtrace.cli.main import app; app(prog_name='kvtrace')"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **asked})
    assert name in done.stdout.split()


def test_sql_is_read_from_stdin(make_trace: MakeTrace) -> None:
    done = kvtrace("sql", make_trace(), "-", "-f", "csv", stdin="SELECT 42 AS answer\n")

    assert done.stdout == '"answer"\n42\n'


def test_failed_write_leaves_the_old_file(make_trace: MakeTrace, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    out.write_text("old")

    failing = "SELECT CASE WHEN r = 999999 THEN error('late') ELSE 1 END AS a FROM range(1000000) t(r)"
    done = kvtrace("sql", make_trace(), failing, "-o", out)

    assert done.returncode == 1
    assert done.stderr == "kvtrace: Invalid Input Error: late\n"
    assert out.read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.csv", "trace.duckdb"]


def test_written_file_is_as_readable_as_any_other(make_trace: MakeTrace, tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    assert kvtrace("sql", make_trace(), "SELECT 1 AS a", "-o", tmp_path / "out.csv").returncode == 0
    assert stat.S_IMODE((tmp_path / "out.csv").stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


@pytest.mark.parametrize("format_", ["table", "csv", "json"])
def test_closed_pipe_is_quiet(make_trace: MakeTrace, format_: str) -> None:
    sql = "SELECT r AS a, r AS b FROM range(300000) t(r)"
    command = [*KVTRACE, "sql", str(make_trace()), sql, "--format", format_, "--limit", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("format_", ["table", "csv", "json"])
def test_ids_cannot_steer_the_terminal(make_trace: MakeTrace, format_: str) -> None:
    """GIVEN an id with an escape sequence WHEN printed to a terminal THEN the terminal sees it as text."""
    path = make_trace(HOSTILE)
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [*KVTRACE, "sql", str(path), "SELECT external_id FROM request", "--format", format_],
        stdout=theirs, stderr=subprocess.PIPE, check=False, env={**os.environ, "NO_COLOR": "1", "TERM": "dumb"},
    )  # fmt: skip
    os.close(theirs)
    shown = os.read(ours, 65536)
    os.close(ours)

    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in shown
    assert b"[bold]x" in shown, "what looks like markup is shown as it is"


def test_error_messages_cannot_steer_the_terminal(make_trace: MakeTrace) -> None:
    done = kvtrace("sql", make_trace(HOSTILE), "SELECT external_id::INTEGER AS a FROM request")

    assert done.returncode == 1
    assert "\x1b" not in done.stderr
