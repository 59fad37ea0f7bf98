"""Segments that end by the clock, and the allowance of bytes: nothing is lost, and nothing is torn that was not."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from kvtrace.capture.budget import Budget
from kvtrace.capture.limits import Limits, from_environment, parse_limits
from kvtrace.capture.recorder import Recorder
from kvtrace.errors import KvtraceError
from kvtrace.events import KV_WINDOW, STEP_REQUEST, STEP_UPDATE
from kvtrace.format.reader import ProcessRecording, open_recording
from kvtrace.retention.process import _records


def only(run: Path) -> ProcessRecording:
    (process,) = open_recording(run).processes
    return process


def counts(run: Path, event: str) -> tuple[int, int]:
    """Whole and torn records over all segments of an event."""
    found = [segment.count() for segment in only(run).segments()[event]]
    return sum(whole for whole, _ in found), sum(torn for _, torn in found)


def test_threads_that_write_while_segments_rotate_lose_nothing(tmp_path: Path) -> None:
    # GIVEN threads that write one by one and in packs, until they are told to stop
    recorder = Recorder(tmp_path, largest_segment_bytes=1 << 16)
    emit, emit_columns = recorder.stream(STEP_UPDATE), recorder.columns(STEP_REQUEST)
    threads, apart = 3, 1 << 24
    written, enough = [0] * threads, threading.Event()

    def write(thread: int) -> None:
        while not enough.is_set():
            step = thread * apart + written[thread]
            emit(1, 2, step, 0, 0)
            emit_columns(8, step, 1, 3, [1] * 8, 1, 0)
            written[thread] += 1

    workers = [threading.Thread(target=write, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()

    # WHEN segments are rotated all the while, each time after every thread wrote something
    for _ in range(12):
        before = list(written)
        while any(now == then for now, then in zip(written, before, strict=True)):
            time.sleep(0)
        recorder.rotate()
    enough.set()
    for worker in workers:
        worker.join()

    # THEN every record is there once, whole, and every rotation ended a segment
    assert len(only(tmp_path).segments()["step_update"]) > 12
    assert counts(tmp_path, "step_update") == (sum(written), 0)
    assert counts(tmp_path, "step_request") == (sum(written) * 8, 0)
    steps = [values[2] for segment in only(tmp_path).segments()["step_update"] for values in _records(segment)]
    assert sorted(steps) == [thread * apart + i for thread in range(threads) for i in range(written[thread])]


def test_a_stream_that_is_appended_to_rotates_at_its_next_rows(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    rows = np.zeros((5, KV_WINDOW.struct.size), np.uint8)
    for _ in range(3):
        recorder.append(KV_WINDOW, rows)
        recorder.rotate()

    segments = only(tmp_path).segments()["kv_window"]
    assert [segment.count() for segment in segments] == [(5, 0), (5, 0), (5, 0)]


def test_an_idle_stream_is_left_alone_and_a_slow_one_takes_little_room(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    emit = recorder.stream(STEP_UPDATE)
    for _ in range(3):
        emit(1, 2, 3, 0, 0)
        recorder.rotate()
        recorder.rotate()  # nothing was written since

    segments = only(tmp_path).segments()["step_update"]
    assert [segment.file_bytes for segment in segments] == [1 << 18, 1 << 14, 1 << 14, 1 << 14]
    assert [segment.count() for segment in segments] == [(1, 0), (1, 0), (1, 0), (0, 0)]


def test_a_segment_that_ended_is_not_mapped_any_more(tmp_path: Path) -> None:
    # GIVEN a stream whose segment was rotated away and deleted, and to which nothing was written since
    recorder = Recorder(tmp_path)
    recorder.stream(STEP_UPDATE)(1, 2, 3, 0, 0)
    first = only(tmp_path).segments()["step_update"][0].path
    assert str(first) in Path("/proc/self/maps").read_text()
    recorder.rotate()
    first.unlink()

    # THEN its space is free
    assert str(first) not in Path("/proc/self/maps").read_text()


def test_a_record_torn_before_the_segment_was_sealed_is_counted(tmp_path: Path) -> None:
    # GIVEN a segment of three records that was rotated, whose second was never finished
    recorder = Recorder(tmp_path)
    emit = recorder.stream(STEP_UPDATE)
    for step in range(3):
        emit(1, 2, step, 0, 0)
    recorder.rotate()
    first = only(tmp_path).segments()["step_update"][0]
    with first.path.open("r+b") as file:
        file.seek(4096 + 2 * first.record_bytes - 1)
        file.write(b"\0")

    assert only(tmp_path).segments()["step_update"][0].count() == (2, 1)


def test_segments_rotate_by_themselves(tmp_path: Path) -> None:
    # GIVEN a recorder with a period, WHEN it has recorded, THEN a thread of it begins the next segment
    recorder = Recorder(tmp_path, Limits(segment_ns=10_000_000))
    recorder.stream(STEP_UPDATE)(1, 2, 3, 0, 0)
    for thread in threading.enumerate():
        if thread.name == "kvtrace-rotation":
            while len(only(tmp_path).segments()["step_update"]) == 1:
                thread.join(0.005)
    assert len(only(tmp_path).segments()["step_update"]) == 2
    recorder.stop("the test is over")


def test_a_recording_stops_at_its_allowance_and_counts_what_it_leaves_out(tmp_path: Path) -> None:
    # GIVEN two processes of a run that may take 600,000 bytes
    limits = from_environment(Limits(max_bytes=600_000).to_environment())
    recorders = [Recorder(tmp_path, limits) for _ in range(2)]
    written = [0, 0]

    # WHEN both write more than fits
    for _ in range(20_000):
        for number, recorder in enumerate(recorders):
            recorder.stream(STEP_UPDATE)(1, 2, 3, 0, 0)
            written[number] += 1

    # THEN their segments together take no more, and what is not there was counted
    processes = open_recording(tmp_path).processes
    segments = [segment for process in processes for segment in process.segments()["step_update"]]
    assert 500_000 < sum(segment.file_bytes for segment in segments) <= 600_000
    assert all("--max-bytes of 600,000" in str(process.stopped) for process in processes)
    dropped = sum(process.dropped()["step_update"] for process in processes)
    assert dropped == sum(written) - sum(segment.count()[0] for segment in segments) > 0


def test_an_allowance_is_shared_and_refuses_without_counting(tmp_path: Path) -> None:
    one, other = Budget(tmp_path, 100), Budget(tmp_path, 100)
    one.take(60)
    with pytest.raises(OSError, match="--max-bytes of 100"):
        other.take(41)
    other.take(40)
    with pytest.raises(OSError, match="--max-bytes"):
        one.take(1)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("", None, ""), Limits()),
        (("20MB", 2.0, ""), Limits(20_000_000, 120_000_000_000)),
        (("", None, "10m"), Limits(None, 75_000_000_000, True, 600_000_000_000)),
        (("", None, "2d"), Limits(None, 600_000_000_000, True, 172_800_000_000_000)),
        (("1.5GiB", 1.0, "90s"), Limits(1_610_612_736, 60_000_000_000, True, 90_000_000_000)),
        (("", None, "2gb"), Limits(2_000_000_000, 60_000_000_000, True)),
    ],
)
def test_limits_of_a_command_line(given: tuple[str, float | None, str], expected: Limits) -> None:
    assert parse_limits(*given) == expected


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (("20 apples", None, ""), "--max-bytes '20 apples': expected a size"),
        (("1kb", None, ""), "16 MB or more"),
        (("", None, "soon"), "or a duration such as"),
        (("", None, "0.5s"), "a second or more"),
        (("1GB", None, "2GB"), "with --keep-last DURATION only"),
    ],
)
def test_limits_that_mean_nothing_are_refused(given: tuple[str, float | None, str], complaint: str) -> None:
    with pytest.raises(KvtraceError, match=complaint):
        parse_limits(*given)
