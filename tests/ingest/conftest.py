"""Fixtures of the ingest tests: small recordings and a way to look into traces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.events import BLOCK_EVENT, REQUEST_QUEUED, BlockOp
from kvtrace.format import layout

Query = Callable[[str], list[tuple[Any, ...]]]


def record_blocks(recorder: Recorder, count: int, request: str = "req-1") -> None:
    """Record `count` block events whose block id counts from 0."""
    emit, number = recorder.stream(BLOCK_EVENT), recorder.intern(request)
    for i in range(count):
        emit(10**12 + i, i // 10, i, BlockOp.allocate, 1, number, 0, 0, 0)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


@pytest.fixture
def small_run(run_dir: Path) -> Path:
    """A recording of one engine: 100 block events, one request, a manifest."""
    recorder = Recorder(run_dir)
    recorder.note("vllm", version="0.32.0")
    recorder.note("role", role="engine")
    recorder.note("engine", model="tiny", blocks=100, block_size_tokens=16, prefix_caching=True)
    recorder.note("hook", hook="vllm.x:Y.z", state="installed", detail="")
    recorder.stream(REQUEST_QUEUED)(10**12, recorder.intern("req-1"), 1, 7, 3, 0, recorder.intern("chat"), 1, 0)
    record_blocks(recorder, 100)
    manifest = {"format_version": 1, "kvtrace_version": "0.1.0", "command": ["vllm"], "started_ns": 1, "pid": 2}
    (run_dir / layout.MANIFEST).write_text(json.dumps({**manifest, "ended_ns": 3, "exit_code": 0}))
    return run_dir


@pytest.fixture
def query() -> Iterator[Callable[[Path], Query]]:
    """`query(trace)(sql)`: the rows."""
    connections = []

    def opened(trace: Path) -> Query:
        connection = duckdb.connect(str(trace), read_only=True)
        connections.append(connection)
        return lambda sql: connection.execute(sql).fetchall()

    yield opened
    for connection in connections:
        connection.close()


@pytest.fixture
def blocks() -> Callable[..., None]:
    return record_blocks


def only_process(run: Path) -> Path:
    (directory,) = (run / layout.PROCESSES).iterdir()
    return directory


@pytest.fixture
def process_dir() -> Callable[[Path], Path]:
    """The directory of a recording's only process."""
    return only_process
