"""A recording of which a flight recorder let the beginning go becomes a trace that says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from kvtrace.capture.limits import Limits
from kvtrace.capture.recorder import Recorder
from kvtrace.events import REQUEST_EVENT, REQUEST_QUEUED, RequestOp
from kvtrace.format.reader import string_files
from kvtrace.ingest.run import ingest
from kvtrace.retention.retention import Retention

from .conftest import Query


def test_what_went_is_counted_and_who_is_still_there_has_a_name(
    run_dir: Path, process_dir: Callable[[Path], Path], query: Callable[[Path], Query]
) -> None:
    # GIVEN six requests, the second of which never ends, each in segments and a file of strings of its own
    limits = Limits(keeps=True, keep_ns=1)
    recorder = Recorder(run_dir, limits)
    recorder.note("role", role="engine")

    def request(name: str) -> None:
        number = recorder.intern(name)
        session = recorder.intern(f"session of {name}")
        recorder.stream(REQUEST_QUEUED)(time.monotonic_ns(), number, 1, 7, 3, 0, session, 1, 0)
        if name != "two":
            now = time.monotonic_ns()
            recorder.stream(REQUEST_EVENT)(now, 1, number, RequestOp.finish, 1, 7, 3, -1, -1, 1)
            recorder.forget(name)
        recorder.forget(f"session of {name}")

    for name in ("one", "two", "three", "four", "five", "six"):
        request(name)
        recorder.rotate()

    # WHEN all of that goes, a seventh comes, and what is there is ingested
    Retention(run_dir, limits).enforce()
    request("seven")
    summary = ingest(run_dir)

    # THEN the trace knows the one that was under way and the new one, by their names
    select = query(summary.target)
    assert select("SELECT internal_id, session, finished_ns IS NULL FROM request ORDER BY queued_ns") == [
        ("two", "session of two", True),
        ("seven", "session of seven", False),
    ]
    # and says what it does not have
    assert select("SELECT event, files, records, carried FROM discarded ORDER BY event") == [
        ("request_event", 5, 5, 0),
        ("request_queued", 6, 6, 1),
    ]
    assert select(
        "SELECT value::BIGINT = (SELECT max(begins_ns) FROM discarded) FROM run WHERE key = 'kept_from_ns'"
    ) == [(True,)]
    assert "last part of a longer recording: 11 records" in summary.warnings[0]
    assert not [warning for warning in summary.warnings if "mean nothing" in warning or "missing" in warning[:8]]
    assert len(string_files(process_dir(run_dir))) == 3


def test_ids_between_known_ones_are_counted_as_unknown(run_dir: Path, process_dir: Callable[[Path], Path]) -> None:
    # GIVEN a kept recording whose strings lack a number that a record uses
    limits = Limits(keeps=True, keep_ns=1)
    recorder = Recorder(run_dir, limits)
    recorder.intern("kept")
    recorder.rotate()
    Retention(run_dir, limits).enforce()
    strings = string_files(process_dir(run_dir))[-1][1]
    strings.write_text(strings.read_text() + '[7, "seven"]\n')
    for number in (1, 3, 7, 9, 0):
        recorder.stream(REQUEST_QUEUED)(time.monotonic_ns(), number, 1, 7, 3, 0, 0, 1, 0)

    summary = ingest(run_dir)

    assert [warning.partition(": ")[2] for warning in summary.warnings if "mean nothing" in warning] == [
        "2 values of request_queued.request mean nothing known; they are NULL"
    ]
