"""Records emitted in packs are the same as records emitted one by one, over segment ends and threads."""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import pytest

from kvtrace.capture import Recorder
from kvtrace.events import REQUEST_HASH, STEP_REQUEST, Event
from kvtrace.recording import open_recording


def recorded(run: Path, event: Event = STEP_REQUEST) -> list[tuple[int, ...]]:
    """All whole records of an event, in order."""
    [process] = open_recording(run).processes
    found = []
    for segment in process.segments()[event.name]:
        records, torn = segment.count()
        assert torn == 0
        data = segment.path.read_bytes()[4096:]
        size = event.struct.size
        found += [event.struct.unpack_from(data, i * size)[:-1] for i in range(records)]
    return found


@pytest.mark.parametrize("counting", [False, True])
def test_packs_of_every_size_arrive_whole_and_in_order(tmp_path: Path, counting: bool) -> None:
    recorder = Recorder(tmp_path, largest_segment_bytes=1 << 18, count_writes=counting)
    emit_columns, emit = recorder.columns(STEP_REQUEST), recorder.stream(STEP_REQUEST)
    expected = []
    for number in range(600):
        rows = list(range(number % 70))
        expected += [(number, row, 1, row + 1, number, 0) for row in rows]
        emit_columns(len(rows), number, rows, 1, [row + 1 for row in rows], number, 0)
        emit(number, 0, 2, 0, 0, 0)
        expected.append((number, 0, 2, 0, 0, 0))
    assert recorded(tmp_path) == expected
    [process] = open_recording(tmp_path).processes
    assert len(process.segments()[STEP_REQUEST.name]) > 1
    if counting:
        assert process.written()[STEP_REQUEST.name] == len(expected)


@pytest.mark.parametrize("rows", [2, 40])
def test_numbers_are_kept_to_their_last_bit_or_refused(tmp_path: Path, rows: int) -> None:
    recorder = Recorder(tmp_path)
    emit_columns = recorder.columns(REQUEST_HASH)
    hashes = [1 << 63, 1, (1 << 64) - 1, *range(rows - 3)][:rows]
    emit_columns(rows, 1, 2, list(range(rows)), hashes, 0)
    assert [row[3] for row in recorded(tmp_path, REQUEST_HASH)] == hashes
    for wrong in ([1 << 64] * rows, [-1] * rows):
        with pytest.raises((OverflowError, struct.error)):
            emit_columns(rows, 1, 2, list(range(rows)), wrong, 0)


def test_threads_do_not_tear_each_others_packs(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, largest_segment_bytes=1 << 18)
    emit_columns = recorder.columns(STEP_REQUEST)

    def write(thread: int) -> None:
        for number in range(400):
            emit_columns(33, number, thread, 1, list(range(33)), 0, 0)

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = recorded(tmp_path)
    assert sorted(found) == sorted(
        (number, thread, 1, row, 0, 0) for thread in range(4) for number in range(400) for row in range(33)
    )
