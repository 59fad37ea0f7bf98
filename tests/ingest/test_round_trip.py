"""Emitted events are in DuckDB: every event, every type, in the order of emission."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import duckdb
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvtrace.capture.recorder import Recorder
from kvtrace.events import (
    BOOL,
    COUNT,
    ENUM,
    EVENTS,
    HASH,
    I32,
    I64,
    PROCESS,
    REQUEST,
    STRING,
    TIME,
    U8,
    Event,
    Field,
)
from kvtrace.ingest.run import ingest

_TEXT = st.text(max_size=20)
_BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    TIME: st.one_of(st.just(0), st.integers(1, 1 << 60)),
    I64: st.integers(-(1 << 63), (1 << 63) - 1),
    COUNT: st.one_of(st.just(-1), st.integers(-(1 << 63), (1 << 63) - 1)),
    I32: st.one_of(st.just(-1), st.integers(-(1 << 31), (1 << 31) - 1)),
    U8: st.integers(0, 255),
    HASH: st.one_of(st.just(0), st.integers(0, (1 << 64) - 1)),
    STRING: _TEXT,
    REQUEST: _TEXT,
    BOOL: st.booleans(),
    PROCESS: st.sampled_from([0, os.getpid(), 999_999_999]),
}


def _values(field: Field) -> st.SearchStrategy[Any]:
    if field.type is ENUM and field.enum:
        return st.sampled_from([0, *field.enum])
    return _BY_TYPE[field.type]


def _record(event: Event) -> st.SearchStrategy[tuple[Event, tuple[Any, ...]]]:
    return st.tuples(st.just(event), st.tuples(*(_values(field) for field in event.fields)))


def _captured(recorder: Recorder, field: Field, value: Any) -> Any:
    return recorder.intern(value) if field.type in (STRING, REQUEST) else value


def _expected(field: Field, value: Any, offset_ns: int) -> Any:
    if field.type is STRING or field.type is REQUEST:
        return value or None
    if field.type is PROCESS:
        return 1 if value == os.getpid() else None
    if field.type is ENUM and field.enum:
        return field.enum(value).name if value else None
    if field.type.null is not None and value == field.type.null:
        return None
    return value + offset_ns if field.type is TIME else value


def _column(field: Field) -> str:
    if field.type is REQUEST:
        return f'(SELECT internal_id FROM request r WHERE r.request = e."{field.name}")'
    return f'e."{field.name}"::VARCHAR' if field.enum else f'e."{field.name}"'


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(st.one_of(*(_record(event) for event in EVENTS.values())), min_size=1, max_size=40))
@example([(EVENTS["prefix_lookup"], (0, -1, "0", (1 << 31) - 1, 0, -1, -1, True, -1, False, False, -1))])
def test_what_was_emitted_is_in_the_trace(records: list[tuple[Event, tuple[Any, ...]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        recorder = Recorder(Path(directory))
        for event, values in records:
            captured = (_captured(recorder, f, v) for f, v in zip(event.fields, values, strict=True))
            recorder.stream(event)(*captured)

        summary = ingest(Path(directory))

        assert summary.records == len(records)
        with duckdb.connect(str(summary.target), read_only=True) as connection:
            ((offset_ns,),) = connection.execute("SELECT DISTINCT offset_ns FROM clock").fetchall()
            for event in EVENTS.values():
                columns = ", ".join(_column(field) for field in event.fields)
                found = connection.execute(f"SELECT {columns} FROM {event.name} e ORDER BY rowid").fetchall()
                assert found == [
                    tuple(_expected(f, v, offset_ns) for f, v in zip(event.fields, values, strict=True))
                    for emitted, values in records
                    if emitted is event
                ]


def test_text_that_no_database_takes_is_made_harmless(run_dir: Path) -> None:
    recorder = Recorder(run_dir)
    recorder.note("engine", model="half \ud800 pair")
    recorder.stream(EVENTS["request_arrival"])(1, recorder.intern("id \udfff"), recorder.intern("café \U0001f600"))

    summary = ingest(run_dir)

    with duckdb.connect(str(summary.target), read_only=True) as connection:
        assert connection.execute("SELECT internal_id, external_id FROM request").fetchall() == [
            ("id ?", "café \U0001f600")
        ]
        assert connection.execute("SELECT model FROM engine").fetchall() == [("half ? pair",)]


def test_a_request_of_several_processes_is_one_request(run_dir: Path) -> None:
    # GIVEN two processes that number their strings differently
    frontend, engine = Recorder(run_dir), Recorder(run_dir)
    frontend.stream(EVENTS["request_arrival"])(5, frontend.intern("a"), frontend.intern("client-a"))
    engine.intern("something else")
    queued = (6, engine.intern("a"), 1, 10, 4, 0, 0, -1, 0)
    engine.stream(EVENTS["request_queued"])(*queued)
    # and a string that was forgotten and came again
    engine.forget("a")
    again = (7, 1, engine.intern("a"), 5, 2, 10, 4, -1, -1, 1)
    engine.stream(EVENTS["request_event"])(*again)

    summary = ingest(run_dir)

    with duckdb.connect(str(summary.target), read_only=True) as connection:
        row = connection.execute("SELECT request, internal_id, external_id, prompt_tokens, finish_reason FROM request")
        assert row.fetchall() == [(1, "a", "client-a", 10, "length")]
    joins = {join.name: (join.matched, join.unmatched) for join in summary.joins}
    assert joins["request_arrival -> request_queued"] == (1, 0)
    assert joins["request_event -> request_queued"] == (1, 0)
