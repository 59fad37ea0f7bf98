"""A real recording, written again by a flight recorder that keeps half of it: that half answers as the whole does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest

from kvtrace.capture.limits import Limits
from kvtrace.capture.recorder import Recorder
from kvtrace.events import EVENTS, PROCESS, REQUEST, STRING, TIME, RequestOp
from kvtrace.format.reader import ProcessRecording, open_recording
from kvtrace.ingest.run import ingest
from kvtrace.retention.process import _records
from kvtrace.retention.retention import Retention
from kvtrace.retention.snapshot import snapshot
from tests.vllm.conftest import Recorded

ROTATIONS = 24


class Emitted(NamedTuple):
    """A record of the real run and when it was written, CLOCK_MONOTONIC."""

    time_ns: int
    process: int
    event: str
    values: tuple[Any, ...]


def emitted(processes: list[ProcessRecording]) -> list[Emitted]:
    """All records in order. Those without a time were written with their step's."""
    found: list[Emitted] = []
    steps: dict[int, int] = {}
    for process in processes:
        for segment in process.segments().get("step_schedule", []):
            steps |= {values[2]: values[1] for values in _records(segment)}
    for number, process in enumerate(processes):
        for event, segments in process.segments().items():
            fields = EVENTS[event].fields
            moments = [index for index, field in enumerate(fields) if field.type is TIME]
            step = next((index for index, field in enumerate(fields) if field.name == "step"), None)
            for values in (values for segment in segments for values in _records(segment)):
                when = max(values[index] for index in moments) if moments else steps[values[step or 0]]
                found.append(Emitted(when, number, event, values))
    return sorted(found, key=lambda record: record.time_ns)


def write_again(run: Path, target: Path, offset_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record a run again, in its own time, and keep the last half. `offset_ns` is UNIX time minus CLOCK_MONOTONIC."""
    processes = open_recording(run).processes
    records = emitted(processes)
    pids = {process.pid for process in processes}
    begin, end = records[0].time_ns, records[-1].time_ns
    now = begin
    for module in ("recorder", "stream"):
        monkeypatch.setattr(
            f"kvtrace.capture.{module}.clock_pair",
            lambda: {"realtime_ns": now + offset_ns, "monotonic_ns": now, "uncertainty_ns": 0},
        )
    monkeypatch.setattr("kvtrace.retention.process.is_alive", lambda facts: True)
    target.mkdir()
    limits = Limits(keeps=True, keep_ns=(end - begin) // 2)
    recorders = [Recorder(target, limits, largest_segment_bytes=1 << 14) for _ in processes]
    texts = [process.strings() for process in processes]
    for recorder, process in zip(recorders, processes, strict=True):
        recorder.note("vllm", version=process.vllm_version)
        for role in process.roles:
            recorder.note("role", role=role)
        if process.engine:
            recorder.note("engine", **process.engine)
        recorder.open()
        now += 1  # directories are named by it
    retention = Retention(target, limits, lambda: now)
    rotate_ns = begin
    for now, number, event, values in records:
        recorder, strings = recorders[number], texts[number]
        fields = EVENTS[event].fields
        named = [strings[v] for f, v in zip(fields, values, strict=True) if f.type in (REQUEST, STRING) and v]
        recorder.stream(EVENTS[event])(
            *(
                recorder.intern(strings[value]) if field.type in (REQUEST, STRING) and value
                else os.getpid() if field.type is PROCESS and value in pids
                else value
                for field, value in zip(fields, values, strict=True)
            )
        )  # fmt: skip
        if event == "request_arrival" or (event == "request_event" and values[3] == RequestOp.finish):
            for text in named:
                recorder.forget(text)
        if now >= rotate_ns:
            rotate_ns = now + (end - begin) // ROTATIONS
            for each in recorders:
                each.rotate()
            retention.enforce()


class Halves(NamedTuple):
    """A whole trace and that of its kept half, with a query that both must answer alike."""

    whole: duckdb.DuckDBPyConnection
    half: duckdb.DuckDBPyConnection
    since_ns: int

    def alike(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows, which are the same; `{since}` is from where the half is whole."""
        sql = sql.format(since=self.since_ns)
        rows = self.half.execute(sql).fetchall()
        assert rows == self.whole.execute(sql).fetchall()
        return rows


def halves_of(run: Path, trace: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Halves]:
    copy = shutil.copy(trace, folder / "whole.duckdb")  # it may be open in this process, with other settings
    with duckdb.connect(str(copy), read_only=True) as whole:
        ((offset_ns,),) = whole.execute("SELECT DISTINCT offset_ns FROM clock").fetchall()
        write_again(run, folder / "flight", offset_ns, monkeypatch)
        summary = ingest(snapshot(folder / "flight", folder / "frozen"))
        with duckdb.connect(str(summary.target), read_only=True) as half:
            ((since,),) = half.execute("SELECT value::BIGINT FROM run WHERE key = 'kept_from_ns'").fetchall()
            yield Halves(whole, half, since)


@pytest.fixture
def halves(served: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Halves]:
    yield from halves_of(served.run, served.run / "trace.duckdb", tmp_path, monkeypatch)


def test_the_kept_half_answers_as_the_whole(halves: Halves) -> None:
    check(halves)


def check(halves: Halves) -> None:
    # Steps, the pool's events with their requests, and block tables put together from deltas
    assert (
        len(halves.alike("SELECT * EXCLUDE (limit_request) FROM step_schedule WHERE start_ns >= {since} ORDER BY step"))
        > 10
    )
    assert (
        len(
            halves.alike(
                "SELECT b.* EXCLUDE (request), q.internal_id FROM block_event b LEFT JOIN request q USING (request) "
                "WHERE b.time_ns >= {since} ORDER BY b.rowid"
            )
        )
        > 10
    )
    assert halves.alike(
        "SELECT b.* EXCLUDE (request), q.internal_id FROM step_block b JOIN request q USING (request) "
        "JOIN step_schedule s ON s.engine_id = b.engine_id AND s.step = b.step WHERE s.start_ns >= {since} ORDER BY ALL"
    )
    # Requests that ended there, whole: those that began before included
    ended = halves.alike("SELECT * EXCLUDE (request) FROM request WHERE finished_ns >= {since} ORDER BY internal_id")
    assert ended
    assert halves.whole.execute(f"SELECT count(*) FROM request WHERE finished_ns < {halves.since_ns}").fetchone() != (
        0,
    )
    # Who holds how many blocks at each step
    assert halves.alike(
        "SELECT s.step, h.held_by, count(*) FROM step_schedule s JOIN block_hold h ON h.engine_id = s.engine_id "
        "AND h.start_ns <= s.scheduled_ns AND h.end_ns > s.scheduled_ns WHERE s.start_ns >= {since} "
        "GROUP BY ALL ORDER BY ALL"
    )
    # What is not there was counted
    for event in ("block_event", "step_request", "request_event"):
        ((there,),) = halves.half.execute(f"SELECT count(*) FROM {event}").fetchall()
        ((gone, carried),) = halves.half.execute(
            f"SELECT sum(records), sum(carried) FROM discarded WHERE event = '{event}'"
        ).fetchall()
        assert gone > 0
        assert halves.whole.execute(f"SELECT count(*) FROM {event}").fetchone() == (there - carried + gone,)
    # and no verdict claims to know what was before
    assert halves.half.execute("SELECT count(*) FROM prefix_miss WHERE verdict = 'never_stored'").fetchone() == (0,)
