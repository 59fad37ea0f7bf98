"""A trace of one importer alone: every report, page, export and query answers, or says what the source cannot tell."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvtrace.cli.main import app
from kvtrace.ingest.run import ingest
from kvtrace.ingest.sources import Sources
from kvtrace.queries import Trace, catalogue

from .nsight.conftest import SmallExport
from .test_damage import FILES
from .test_torch import GPU, trace_of

KV_EVENTS = {"sequence": 0, "ts": 1.5, "events": [{"type": "BlockStored", "block_hashes": [1, 2], "block_size": 16}]}


def _nsight(path: Path) -> None:
    export = SmallExport(path).call(-3_000, 1).kernel(10, 20, 1)  # without a clock, and before the session's start
    export.db.close()


def _write(content: str | bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode()) and None


MADE: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "nsight": ("nsight", "a.sqlite", _nsight),
    "torch": ("torch", "a.json", _write(trace_of(GPU))),
    "kv_events": ("kv_events", "a.jsonl", _write(json.dumps(KV_EVENTS) + "\n")),
    **{
        name: (*FILES[name][:2], _write(FILES[name][2]))
        for name in ("writes", "reads", "usage", "log", "sched", "chats")
    },
}


@pytest.fixture(scope="module", params=sorted(MADE))
def trace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind, name, write = MADE[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    write(folder / name)
    files: dict[str, Any] = {kind: (folder / name,)}
    return ingest(None, folder / "trace.duckdb", sources=Sources(**files)).target


@pytest.mark.parametrize(
    "arguments",
    [["report", "-o", "report"], ["view", "-o", "trace.html"], ["export", "--perfetto", "perfetto"],
     ["export", "--parquet", "parquet"]],
)  # fmt: skip
def test_what_looks_at_a_trace_looks_at_this_one(trace: Path, arguments: list[str], tmp_path: Path) -> None:
    command, *options, target = arguments
    done = CliRunner().invoke(app, [command, str(trace), *options, str(tmp_path / target)])
    assert done.exit_code == 0, done.exception
    assert (tmp_path / target).exists()
    assert "could not be drawn" not in done.output


def test_it_compares_with_itself(trace: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["compare", str(trace), str(trace), "-o", str(tmp_path / "compared")])
    assert done.exit_code == 0, done.exception


def test_every_query_answers(trace: Path) -> None:
    with Trace(trace) as opened:
        for name, query in catalogue().items():
            given = {param.name: "1" for param in query.params if param.required}
            assert opened.query(name, format="arrow", **given).column_names, name
