"""`kvtrace redact`: no name is left in the file, and every query counts what it counted."""

from __future__ import annotations

import re
import shutil
import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pandas as pd
import pytest
from typer.testing import CliRunner

from kvtrace.cli.main import app
from kvtrace.errors import KvtraceError
from kvtrace.ingest.redaction import is_kept, redact_trace
from kvtrace.ingest.run import ingest
from kvtrace.queries import Trace, catalogue
from tests.hostile.conftest import secret
from tests.hostile.marked import make_marked
from tests.traces import write_trace

QUERIES = Path(__file__).parents[1] / "queries"
RECORDINGS = Path(__file__).parents[2] / "examples" / "recordings"
KEY = b"0123456789abcdef0123456789abcdef"
TIED = (("kv-fragmentation",), ("pass-throughput", "prefix-phases"), ("handover-stages",))
"""Queries whose ties, in the traces together, break by text or by chance, or that join what has one number in many of
them with itself: each gets a trace of its own."""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The traces that the queries are tested with, all in one but those of `TIED`."""
    apart = {name for names in TIED for name in names}
    return _made(tmp_path_factory, sorted({path.parent.name for path in QUERIES.glob("*/trace.sql")} - apart))


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Those of `TIED`."""
    return {name: path for names in TIED for path in [_made(tmp_path_factory, names)] for name in names}


def _made(tmp_path_factory: pytest.TempPathFactory, names: Sequence[str]) -> Path:
    statements = [(QUERIES / name / "trace.sql").read_text() for name in names]
    path = write_trace(tmp_path_factory.mktemp("redact") / "trace.duckdb", *statements)
    redact_trace(path, path.with_name("redacted.duckdb"), KEY)
    return path


def test_no_identifier_is_left_in_the_file(tmp_path: Path) -> None:
    """GIVEN a secret in every text column WHEN the trace is redacted THEN its file has none but in kept columns."""
    trace, target = tmp_path / "t.duckdb", tmp_path / "out.duckdb"
    columns = make_marked(trace, secret)
    done = redact_trace(trace, target, KEY)
    data = target.read_bytes()
    for table, names in columns.items():
        for name in names:
            if table != "run":
                assert (secret(table, name).encode() in data) is is_kept(table, name), f"{table}.{name}"
                assert (f"{table}.{name}" in done.hashed) is not is_kept(table, name)
    assert secret("run", "command").encode() not in data
    assert secret("run", "warnings").encode() not in data
    assert done.left_out == ["2 facts of table run"]
    with duckdb.connect(str(target), read_only=True) as connection:
        facts = dict(connection.execute("FROM run").fetchall())
        hashes = connection.execute("SELECT DISTINCT block_hash FROM block_event").fetchall()
    assert facts.keys() == {
        "trace_version", "kvtrace_version", "vllm_version", "source", "started_ns", "exit_code", "command", "redacted",
    }  # fmt: skip
    assert facts["vllm_version"] == secret("run", "vllm_version")
    assert hashes != [(7,)]


def test_sentences_of_a_recording_name_requests_by_their_hashes(tmp_path: Path) -> None:
    """GIVEN a recording whose misses are blamed on other requests WHEN redacted THEN they are named by hashes."""
    with tarfile.open(RECORDINGS / "agents-small.tar.xz") as file:
        file.extractall(tmp_path, filter="data")
    trace, target = ingest(tmp_path / "agents-small").target, tmp_path / "out.duckdb"
    redact_trace(trace, target, KEY)
    names = "SELECT DISTINCT unnest([external_id, internal_id, session]) FROM request"
    with Trace(trace) as original, Trace(target) as redacted:
        ids = [name for (name,) in original.sql(names, "relation").fetchall()]
        sentences = [why for (why,) in redacted.sql("SELECT why FROM prefix_miss", "relation").fetchall()]
        blamed = redacted.sql(
            "SELECT count(*), count(*) FILTER (contains(why, 'equest ' || q.external_id)) "
            "FROM prefix_miss m JOIN request q ON q.request = m.other_request",
            "relation",
        ).fetchall()
    assert len(ids) > 100
    assert not [name for name in ids for why in sentences if name in why]
    assert blamed[0][0] == blamed[0][1] > 10
    data = target.read_bytes()
    assert not [name for name in ids if name.encode() in data]


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_every_query_counts_the_same(name: str, trace: Path, tied: dict[str, Path]) -> None:
    """Numbers are equal, hashes of blocks apart; texts are as many, and as many of them differ."""
    original = tied.get(name, trace)
    frames = [_answer(path, name) for path in (original, original.with_name("redacted.duckdb"))]
    before, after = ([_numbers(frame), _texts(frame)] for frame in frames)
    pd.testing.assert_frame_equal(before[0], after[0], check_dtype=False)
    assert before[1] == after[1]


def _answer(path: Path, name: str) -> pd.DataFrame:
    """The answer as one thread gives it: several break ties as it comes."""
    with Trace(path) as trace:
        sql = catalogue()[name].sql(trace._bind(catalogue()[name], {}))
    with duckdb.connect(str(path), read_only=True, config={"threads": 1}) as connection:
        return connection.sql(sql).df()


def _numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """The numeric columns, in an order that texts have no part in."""
    numeric = frame.select_dtypes(include="number").drop(columns=["block_hash"], errors="ignore")
    return numeric.sort_values(list(numeric.columns)).reset_index(drop=True) if len(numeric.columns) else numeric


def _texts(frame: pd.DataFrame) -> dict[str, tuple[int, int]]:
    texts = frame.select_dtypes(include=["object", "string"])
    return {name: (int(texts[name].count()), len(texts[name].astype(str).unique())) for name in texts}


def test_equal_texts_stay_equal_in_all_columns(trace: Path) -> None:
    """A request's session is that of its arrival's, and of its client's, as before."""
    sql = "SELECT count(*) FROM {0}.request r JOIN {0}.{1} o ON r.{2} = o.{3}"
    pairs = [
        ("client_request", "session", "session"), ("request_queued", "session", "session"),
        ("client_request", "external_id", "request_id"), ("request_arrival", "external_id", "external_id"),
    ]  # fmt: skip
    with duckdb.connect() as connection:
        for name, path in (("before", trace), ("after", trace.with_name("redacted.duckdb"))):
            connection.execute(f"ATTACH '{path}' AS {name} (READ_ONLY)")
        counts = [
            [connection.execute(sql.format(name, *pair)).fetchone() for pair in pairs] for name in ("before", "after")
        ]
    assert counts[0] == counts[1]
    assert counts[0][0] != (0,)


def test_samples_keep_their_parent(tmp_path: Path) -> None:
    """Of a request with n > 1; a number before another id, as `7_` here, is hashed with it."""
    path = write_trace(
        tmp_path / "trace.duckdb",
        "INSERT INTO request (request, internal_id, queued_ns) VALUES (1, 'a-9', NULL), (2, '0_a-9', 5), (3, '7_b', 5)",
    )
    redact_trace(path, tmp_path / "redacted.duckdb", b"key")
    with Trace(tmp_path / "redacted.duckdb") as redacted:
        rows = redacted.sql("SELECT * FROM request_sample", format="arrow").to_pylist()
        ids = redacted.sql("SELECT internal_id FROM request", format="arrow").column(0).to_pylist()
    assert rows == [{"request": 2, "parent": 1, "sample": 0}]
    assert not any("a-9" in each or each.startswith("7_") for each in ids)


@pytest.mark.parametrize("command", ["compare", "report", "view", "findings"])
def test_what_reads_settings_takes_a_redacted_trace(tmp_path: Path, command: str) -> None:
    """An engine's settings are JSON, and a word once they are hashed."""
    path = write_trace(
        tmp_path / "trace.duckdb",
        """INSERT INTO engine (engine_id, settings) VALUES (1, '{"scheduler": {"policy": "fcfs"}}')""",
    )
    redacted = tmp_path / "redacted.duckdb"
    redact_trace(path, redacted, b"key")
    more = {"compare": [redacted], "report": ["-o", tmp_path / "report"], "view": ["-o", tmp_path / "page.html"]}
    done = CliRunner().invoke(app, [command, str(redacted), *map(str, more.get(command, []))])
    assert done.exit_code == 0, done.exception


def test_the_command(tied: dict[str, Path], tmp_path: Path) -> None:
    """It refuses to replace, tells what it did, and gives equal hashes for equal keys and others for others."""

    def redact(output: str, *more: str) -> tuple[str, list[tuple[str]]]:
        done = CliRunner().invoke(app, ["redact", str(tied["prefix-phases"]), "-o", str(tmp_path / output), *more])
        assert done.exit_code == 0, done.exception
        with duckdb.connect(str(tmp_path / output), read_only=True) as connection:
            return done.output, connection.execute("SELECT session FROM request ORDER BY rowid").fetchall()

    key = ["--key-file", str(tmp_path / "key")]
    told, first = redact("a.duckdb", *key)
    assert re.search(r"request\.session +\d+ hashed", told)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert redact("b.duckdb", *key)[1] == first
    other = redact("b.duckdb", "--force")[1]
    assert other != first
    assert [a is None for (a,) in other] == [a is None for (a,) in first]
    refused = CliRunner().invoke(app, ["redact", str(tied["prefix-phases"]), "-o", str(tmp_path / "b.duckdb")])
    assert "--force" in str(refused.exception)
    refused = CliRunner().invoke(
        app, ["redact", str(tied["prefix-phases"]), "-o", str(tied["prefix-phases"]), "--force"]
    )
    assert "is the trace itself" in str(refused.exception)
    refused = CliRunner().invoke(app, ["redact", str(tmp_path), "-o", str(tmp_path / "c.duckdb")])
    assert "only traces are redacted" in str(refused.exception)
    (tmp_path / "run").mkdir()
    shutil.copy(tied["prefix-phases"], tmp_path / "run" / "trace.duckdb")
    done = CliRunner().invoke(app, ["redact", str(tmp_path / "run"), "-o", str(tmp_path / "d.duckdb")])
    assert done.exit_code == 0, done.exception
    (tmp_path / "short").write_text("abc\n")
    refused = CliRunner().invoke(
        app,
        ["redact", str(tied["prefix-phases"]), "-o", str(tmp_path / "c.duckdb"), "--key-file", str(tmp_path / "short")],
    )
    assert isinstance(refused.exception, KvtraceError)
    assert not (tmp_path / "c.duckdb").exists()
