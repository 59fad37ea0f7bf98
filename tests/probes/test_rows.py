"""Records emitted in packs are the same as records emitted one by one, over segment ends and threads."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kvtrace.capture import Recorder
from kvtrace.events import STEP_REQUEST
from kvtrace.recording import open_recording


def recorded(run: Path) -> list[tuple[int, ...]]:
    """All whole records of STEP_REQUEST, in order."""
    [process] = open_recording(run).processes
    found = []
    for segment in process.segments()[STEP_REQUEST.name]:
        records, torn = segment.count()
        assert torn == 0
        data = segment.path.read_bytes()[4096:]
        size = STEP_REQUEST.struct.size
        found += [STEP_REQUEST.struct.unpack_from(data, i * size)[:-1] for i in range(records)]
    return found


@pytest.mark.parametrize("counting", [False, True])
def test_packs_of_every_size_arrive_whole_and_in_order(tmp_path: Path, counting: bool) -> None:
    recorder = Recorder(tmp_path, largest_segment_bytes=1 << 18, count_writes=counting)
    emit_rows, emit = recorder.rows_stream(STEP_REQUEST), recorder.stream(STEP_REQUEST)
    expected = []
    for number in range(600):
        rows = [(number, row, 1, row + 1, number, 0) for row in range(number % 70 + 1)]
        expected += rows
        emit_rows([value for row in rows for value in (*row, 1)], len(rows))
        emit(number, 0, 2, 0, 0, 0)
        expected.append((number, 0, 2, 0, 0, 0))
    assert recorded(tmp_path) == expected
    [process] = open_recording(tmp_path).processes
    assert len(process.segments()[STEP_REQUEST.name]) > 1
    if counting:
        assert process.written()[STEP_REQUEST.name] == len(expected)


def test_threads_do_not_tear_each_others_packs(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, largest_segment_bytes=1 << 18)
    emit_rows = recorder.rows_stream(STEP_REQUEST)

    def write(thread: int) -> None:
        for number in range(400):
            emit_rows([value for row in range(33) for value in (number, thread, 1, row, 0, 0, 1)], 33)

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = recorded(tmp_path)
    assert sorted(found) == sorted(
        (number, thread, 1, row, 0, 0) for thread in range(4) for number in range(400) for row in range(33)
    )
