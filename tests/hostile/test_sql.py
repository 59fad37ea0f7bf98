"""Confinement of SQL, a user's or that of a stranger who made the trace: it reaches the trace, nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner

from kvtrace.cli.main import app
from kvtrace.errors import KvtraceError
from kvtrace.ingest.build import check_replaceable
from kvtrace.queries import Trace, catalogue
from kvtrace.reports import answers

URL = "http://127.0.0.1:9/x"
STATEMENTS = [
    "COPY run TO '{out}'",
    "COPY (SELECT 1) TO '{out}' (FORMAT parquet)",
    "EXPORT DATABASE '{out}'",
    "ATTACH '{out}' AS other",
    "ATTACH '{url}' AS other",
    "CREATE TABLE x (a INTEGER)",
    "CREATE TEMP TABLE x AS SELECT 1",
    "CREATE MACRO m() AS 1",
    "CREATE SECRET s (TYPE s3)",
    "INSERT INTO run VALUES ('a', 'b')",
    "DELETE FROM run",
    "UPDATE run SET value = ''",
    "DROP TABLE run",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{out}'",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "SET threads = 1",
    "RESET memory_limit",
    "PRAGMA enable_profiling",
    "PRAGMA database_list",
    "CALL enable_logging('QueryLog')",
    "CHECKPOINT",
    "VACUUM",
    "USE memory",
    "BEGIN",
    "SELECT 1; SELECT 2",
    "EXPLAIN ANALYZE COPY run TO '{out}'",
    "EXPLAIN ANALYZE INSERT INTO run VALUES ('a', 'b')",
    "EXPLAIN ANALYZE CREATE TABLE x AS SELECT 1",
    "EXPLAIN ANALYZE SET threads = 1",
    "WITH x AS (INSERT INTO run VALUES ('a', 'b') RETURNING *) FROM x",
    "FROM query('COPY run TO ''{out}''')",
    "FROM enable_logging('QueryLog', storage_path = '{out}')",
    "FROM enable_profiling(save_location = '{out}')",
]
READS = [
    "FROM '{file}'",
    "FROM read_csv('{file}')",
    "FROM read_text('{file}')",
    "FROM read_blob('{file}')",
    "FROM read_json('{file}')",
    "FROM read_parquet('{file}')",
    "FROM sniff_csv('{file}')",
    "FROM glob('{file}*')",
    "FROM read_text('/proc/self/environ')",
    "FROM read_csv('{url}')",
    "FROM read_parquet('s3://bucket/x')",
    "FROM sqlite_scan('{file}', 'x')",
    "FROM read_duckdb('{file}')",
    "FROM duckdb_extensions()",
    "SELECT getenv('MARKED_FOR_SQL')",
    "SELECT read_text('{file}')",
]


@pytest.fixture
def places(tmp_path: Path) -> Callable[[str], str]:
    """Fills in a file with a secret, a file to write, and an address."""
    (tmp_path / "secret.csv").write_text("a\nmarked-secret\n")
    return lambda sql: sql.format(out=tmp_path / "written", file=tmp_path / "secret.csv", url=URL)


def test_sql_reaches_nothing_but_the_trace(
    hostile_trace: Path, tmp_path: Path, places: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARKED_FOR_SQL", "marked-secret")
    before = hostile_trace.read_bytes()
    with Trace(hostile_trace) as trace:
        for statement in (*STATEMENTS, *READS):
            with pytest.raises(KvtraceError) as refused:
                trace.sql(places(statement))
            assert "marked-secret" not in str(refused.value)
        settings = {
            name: trace.sql(f"SELECT current_setting('{name}')::VARCHAR AS v", "arrow").to_pydict()["v"][0]
            for name in ("enable_external_access", "lock_configuration", "autoinstall_known_extensions", "access_mode")
        }
        everything = str(trace.sql("FROM duckdb_settings()", "arrow").to_pylist())
    assert settings == {
        "enable_external_access": "false",
        "lock_configuration": "true",
        "autoinstall_known_extensions": "false",
        "access_mode": "read_only",
    }
    assert os.environ["MARKED_FOR_SQL"] not in everything
    assert hostile_trace.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


def test_a_value_is_never_sql(hostile_trace: Path) -> None:
    """A parameter is text until DuckDB has cast it."""
    injection = "x'; COPY run TO '/tmp/x'; --"
    with Trace(hostile_trace) as trace:
        assert len(trace.query("prefix-miss", session=injection)) == 0
        numbers = [
            (query, param) for query in catalogue().values() for param in query.params if param.type == "INTEGER"
        ]
        assert len(numbers) > 10
        for query, param in numbers:
            with pytest.raises(KvtraceError, match="is not of type INTEGER"):
                trace.query(query.name, **{param.name: injection})


def test_views_of_a_stranger_read_nothing(
    hostile_trace: Path, tmp_path: Path, places: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a trace whose views read a file of the reader's WHEN it is opened in every way THEN nothing is read."""
    monkeypatch.setattr(answers, "_picture", lambda trace, query: (None, None))  # they take ten times as long
    path = tmp_path / "in" / "trace.duckdb"
    path.parent.mkdir()
    path.write_bytes(hostile_trace.read_bytes())
    file = places("{file}")
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE OR REPLACE VIEW step AS SELECT a AS internal_id FROM read_csv('{file}')")
        connection.execute("ALTER TABLE hook RENAME TO hook_before")
        connection.execute(
            f"CREATE VIEW hook AS SELECT 1 AS process_id, a AS hook, a AS state, a AS detail FROM '{file}'"
        )
        connection.execute(f"CREATE MACRO stolen() AS TABLE FROM read_text('{file}')")
    told = []
    for arguments in (
        ["sql", str(path), "FROM step"],
        ["sql", str(path), "FROM stolen()"],
        ["query", "step-timeline", str(path)],
        ["report", str(path), "-o", str(tmp_path / "report")],
        ["compare", str(path), str(path)],
        ["view", str(path), "-o", str(tmp_path / "page.html")],
        ["export", str(path), "--csv", str(tmp_path / "csv"), "--views"],
        ["redact", str(path), "-o", str(tmp_path / "redacted.duckdb")],
    ):
        done = CliRunner().invoke(app, arguments)
        assert done.exception is None or isinstance(done.exception, (KvtraceError, SystemExit)), arguments
        told.append(f"{done.output} {done.exception}")
    assert "marked-secret" not in "".join(told)
    assert sum("can read nothing but the trace" in each for each in told) >= 4
    written = [each for each in tmp_path.rglob("*") if each.is_file() and each.name != "secret.csv"]
    assert all(b"marked-secret" not in each.read_bytes() for each in written)


def test_a_target_that_is_a_strangers_is_only_looked_at(tmp_path: Path, places: Callable[[str], str]) -> None:
    """Ingest looks whether a file that it is to replace is a trace: its table `run` may be a view over anything."""
    path = tmp_path / "trace.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            places("CREATE VIEW run AS SELECT 'trace_version' AS key, a AS value FROM read_csv('{file}')")
        )
    with pytest.raises(KvtraceError, match="is not a kvtrace trace"):
        check_replaceable(path)
