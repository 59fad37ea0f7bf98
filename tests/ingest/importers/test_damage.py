"""Truncated and mutated files of other tools: an answer or one clear line, never a crash, never half a trace."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvtrace.cli.main import app
from kvtrace.errors import KvtraceError
from kvtrace.ingest.run import ingest
from kvtrace.ingest.schema.trace import create_schema
from kvtrace.ingest.sources import Sources, import_sources

from .test_request_trace import CHATS, MOONCAKE
from .test_sched_trace import DECISION, SNAPSHOT
from .unboxkv_files import STEPS, USAGE, Patterns, log_text

PATTERNS = Patterns([16, 5], 1, layers=1)


def _lines(objects: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(each) + "\n" for each in objects).encode()


FILES: dict[str, tuple[str, str, bytes]] = {
    "writes": ("unboxkv", "kv_write_pattern.json", _lines(PATTERNS.writes)),
    "reads": ("unboxkv", "kv_read_pattern.json", _lines(PATTERNS.reads)),
    "packed": ("unboxkv", "kv_write_pattern.json.xz", lzma.compress(_lines(PATTERNS.writes))),
    "usage": ("unboxkv", "swap.csv", USAGE.encode()),
    "steps": ("unboxkv", "swap_step.csv", STEPS.encode()),
    "log": ("unboxkv", "a.log", log_text(chunked=True).encode()),
    "sched": (
        "sched_trace",
        "s.jsonl",
        _lines([SNAPSHOT, DECISION, {"kind": "prefix_cache_lookup", "request_id": "a"}]),
    ),
    "mooncake": ("requests", "m.jsonl", _lines(MOONCAKE)),
    "chats": ("requests", "c.jsonl", _lines(CHATS)),
}
VALUES = [
    b"-1",
    b"1e999",
    b"NaN",
    b'"x"',
    b"null",
    b"[]",
    b"{}",
    b"true",
    b"9223372036854775808",
    b"",
    b"\xff\xfe",
    b"\0",
]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """A file that was cut, had bytes changed, a number replaced, or lines lost, repeated or put in another order."""
    name = draw(st.sampled_from(sorted(FILES)))
    content = FILES[name][2]
    how = draw(st.sampled_from(["cut", "byte", "number", "lines"]))
    if how == "cut":
        return name, content[: draw(st.integers(0, len(content)))]
    if how == "byte":
        at = draw(st.integers(0, len(content) - 1))
        return name, content[:at] + draw(st.binary(min_size=1, max_size=4)) + content[at + 1 :]
    if how == "number":
        digits = [at for at, byte in enumerate(content) if 48 <= byte <= 57]
        at = draw(st.sampled_from(digits))
        return name, content[:at] + draw(st.sampled_from(VALUES)) + content[at + 1 :]
    lines = content.splitlines(keepends=True)
    return name, b"".join(draw(st.lists(st.sampled_from(lines), max_size=2 * len(lines))))


@pytest.fixture(scope="module")
def trace() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    create_schema(connection)
    return connection


@given(made=damaged())
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_importer_reads_or_refuses(
    made: tuple[str, bytes], trace: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    """WHEN an importer reads a damaged file THEN it returns, or refuses in one line that names the file."""
    kind, file, _ = FILES[made[0]]
    path = tmp_path / file
    path.write_bytes(made[1])
    refusal = _import(trace, Sources(**{kind: (path,)}))
    if refusal is not None:
        assert path.name in refusal
        assert "\n" not in refusal
        assert len(refusal) < 1000


def _import(trace: duckdb.DuckDBPyConnection, sources: Sources) -> str | None:
    """Import and look at what came of it, then undo it; returns what was refused."""
    trace.execute("BEGIN")
    try:
        import_sources(trace, sources, lambda what, done, total: None)
        trace.execute("SELECT count(*) FROM kv_access").fetchall()
        trace.execute("SELECT * FROM step").fetchall()
    except KvtraceError as error:
        return str(error)
    finally:
        trace.execute("ROLLBACK")
        trace.execute("DROP TABLE IF EXISTS temp.imported_step; DROP TABLE IF EXISTS temp.sched_row")
    return None


@pytest.mark.parametrize("name", ["writes", "packed", "usage", "log", "sched", "chats"])
def test_an_earlier_trace_survives_a_file_that_is_refused(name: str, tmp_path: Path) -> None:
    kind, file, content = FILES[name]
    target, path = tmp_path / "trace.duckdb", tmp_path / file
    path.write_bytes(content)
    ingest(None, target, sources=Sources(**{kind: (path,)}))
    before = target.read_bytes()
    path.write_bytes(b"\0" + content[: len(content) // 2])
    with pytest.raises(KvtraceError):
        ingest(None, target, sources=Sources(**{kind: (path,)}))
    assert target.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([file, target.name])


def test_files_that_follow_are_of_the_kind_given(tmp_path: Path) -> None:
    for name in ("mooncake", "chats"):
        (tmp_path / FILES[name][1]).write_bytes(FILES[name][2])
    first, second, target = (str(tmp_path / name) for name in ("m.jsonl", "c.jsonl", "t.duckdb"))
    run = CliRunner().invoke(app, ["ingest", "--requests", first, second, "-o", target])
    assert run.exit_code == 0, run.output
    with duckdb.connect(target, read_only=True) as connection:
        files = connection.execute("SELECT file FROM source ORDER BY source_id").fetchall()
    assert files == [("m.jsonl",), ("c.jsonl",)]
    arguments = ["ingest", "--requests", first, "--sched-trace", first, second, "-o", target]
    refused = CliRunner().invoke(app, arguments).exception
    assert isinstance(refused, KvtraceError)
    assert "give its kind before it" in str(refused)
