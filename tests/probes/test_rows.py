"""Records by name, in order and in packs are those of the declaration, over segment ends and threads."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.capture.recorder import Recorder
from kvtrace.events import EVENTS, REQUEST_HASH, STEP_REQUEST, Event
from kvtrace.format.reader import open_recording


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


_BOUNDS = {"q": (-(1 << 63), (1 << 63) - 1), "i": (-(1 << 31), (1 << 31) - 1), "B": (0, 255)}
_BOUNDS |= {"Q": (0, (1 << 64) - 1), "I": (0, (1 << 32) - 1), "?": (0, 1)}


@settings(max_examples=30)
@given(st.data())
def test_every_event_s_fields_are_kept(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    run = tmp_path_factory.mktemp("run")
    recorder, event = Recorder(run), data.draw(st.sampled_from(list(EVENTS.values())))
    values = [st.integers(*_BOUNDS[field.type.code]) for field in event.fields]
    rows = data.draw(st.lists(st.tuples(*values), min_size=1, max_size=40))
    for row in rows:
        recorder.stream(event)(*row)
    recorder.columns(event)(len(rows), *map(list, zip(*rows, strict=True)))
    assert recorded(run, event) == [*rows, *rows]


@settings(max_examples=30)
@given(st.data())
def test_fields_are_given_by_name_in_any_order(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    run = tmp_path_factory.mktemp("run")
    recorder, event = Recorder(run), data.draw(st.sampled_from(list(EVENTS.values())))
    row = event.record(*[data.draw(st.integers(*_BOUNDS[field.type.code])) for field in event.fields])
    for _ in range(3):
        names = data.draw(st.permutations([field.name for field in event.fields]))
        recorder.stream(event)(**{name: getattr(row, name) for name in names})
        recorder.columns(event)(2, **{name: [getattr(row, name)] * 2 for name in names})
    assert recorded(run, event) == [row] * 9


def test_a_record_needs_each_field_once_and_knows_no_other(tmp_path: Path) -> None:
    emit, names = Recorder(tmp_path).stream(STEP_REQUEST), [field.name for field in STEP_REQUEST.fields]
    for wrong, args in ((names[1:], ()), ([*names[1:], "more"], ()), (names[:-1], (1,)), ([*names, "more"], ())):
        with pytest.raises(TypeError, match=r"values|no field 'more'|twice"):
            emit(*args, **dict.fromkeys(wrong, 1))


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
        with pytest.raises(OverflowError):
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
