"""Clients' view, beside a recording."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.errors import KvtraceError
from kvtrace.events import REQUEST_ARRIVAL, REQUEST_QUEUED
from kvtrace.format import layout
from kvtrace.ingest.run import ingest
from kvtrace.launch.rundir import make_run_dir


def record(run_dir: Path, **external_ids: str) -> None:
    """A recording that knows the requests `internal=external`."""
    recorder = Recorder(run_dir)
    for internal, external in external_ids.items():
        number = recorder.intern(internal)
        recorder.stream(REQUEST_ARRIVAL)(1, number, recorder.intern(external))
        recorder.stream(REQUEST_QUEUED)(2, number, 1, 7, 3, 0, 0, -1, 0)


def write(run_dir: Path, *lines: Any) -> None:
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    (run_dir / layout.CLIENT).write_text(text)


def test_a_clients_requests_find_the_engines(run_dir: Path, query: Callable) -> None:
    # GIVEN a request of an engine in the process, one of a server, which appends the prompt's index, and a lost one
    record(run_dir, one="mine", two="cmpl-7-0")
    write(
        run_dir,
        {"request_id": "lost", "send_ns": 9, "error": "refused"},
        {"request_id": "cmpl-7", "send_ns": 5, "session": "job", "turn": 3, "last": True},
        {"request_id": "mine", "send_ns": 4, "tool": "cd", "tool_ms": 0.5, "token_ns": [6, 8], "cached_tokens": 16},
    )
    summary = ingest(run_dir)
    select = query(summary.target)
    columns = "request_id, internal_id, c.session, c.turn, last, tool, tool_ms, token_ns, cached_tokens, error"
    assert select(f"SELECT {columns} FROM client_request c LEFT JOIN request USING (request) ORDER BY send_ns") == [
        ("mine", "one", None, None, None, "cd", 0.5, [6, 8], 16, None),
        ("cmpl-7", "two", "job", 3, True, None, None, None, None, None),
        ("lost", None, None, None, None, None, None, None, None, "refused"),
    ]
    assert ("client_request -> request", 2, 1) in summary.joins
    assert select("SELECT * FROM join_count WHERE name LIKE 'client%'") == [("client_request -> request", 2, 1)]


def test_a_torn_last_line_is_left_out_and_reported(run_dir: Path, query: Callable) -> None:
    record(run_dir, one="mine")
    write(run_dir, {"request_id": "mine", "send_ns": 4}, '{"request_id": "oth')
    summary = ingest(run_dir)
    assert query(summary.target)("SELECT count(*) FROM client_request") == [(1,)]
    assert any("client.jsonl" in warning and "torn" in warning for warning in summary.warnings)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"request_id": "a"}, "line 1: .* expected an object with request_id and send_ns"),
        ([1], "line 1"),
        ({"request_id": "a", "send_ns": "soon"}, "client.jsonl, line 1: send_ns"),
    ],
)
def test_what_is_no_record_is_named(run_dir: Path, line: Any, message: str) -> None:
    record(run_dir, one="mine")
    write(run_dir, line)
    with pytest.raises(KvtraceError, match=message):
        ingest(run_dir)


def test_force_replaces_a_run_with_its_client_records(run_dir: Path) -> None:
    record(run_dir, one="mine")
    write(run_dir, {"request_id": "mine", "send_ns": 4})
    make_run_dir(run_dir, force=True)
    assert [(entry.name, entry.stat().st_size) for entry in run_dir.iterdir()] == [("manifest.json", 0)]
