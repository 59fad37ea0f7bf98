"""Ends of a step's tiles: written, dropped for want of room in the ring, or not to be written any more."""

from __future__ import annotations

import ctypes
import json
import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from kvtrace.capture.recorder import Recorder
from kvtrace.format.tile_file import FILE_HEADER_BYTES
from kvtrace.ingest.derive import tile_columns
from kvtrace.probes.device.tiles import drain as drain_module
from kvtrace.probes.device.tiles import layout
from kvtrace.probes.device.timer import LARGEST_DRIFT
from tests.probes.tiles.host_drain import Drain, Ring, driver
from tests.probes.tiles.ring_code import SLOTS, add_to_cursors

WRITES = 1000
STEP_BYTES = WRITES * layout.SECTIONS[layout.WRITES].record_bytes
ROOM = 10 * WRITES


def closes(drain: Drain, step: int, state: int = layout.RECORDED, filtered: int = 0) -> None:
    """The device closes a step of 1,000 writes, and is looked at."""
    drain._ring.closes(step, (0, 0, WRITES), state, filtered)
    drain.look()


@pytest.fixture
def drain(tmp_path: Path) -> Iterator[Drain]:
    made = Drain(Recorder(tmp_path), Ring([16, 16, ROOM]))
    yield made
    made.close()


@pytest.fixture
def full_after(drain: Drain) -> Iterator[None]:
    """Files may have two steps and a half."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_HEADER_BYTES + STEP_BYTES * 5 // 2, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def steps_in(drain: Drain) -> list[tuple[int, int]]:
    chunks, torn = tile_columns.headers(drain._files._recorder.directory)
    assert torn == 0
    return [(chunk.step, chunk.lost_steps) for chunk in chunks]


def test_a_step_that_did_not_fit_is_lost_and_said_with_the_next(drain: Drain) -> None:
    for step, state in enumerate((layout.RECORDED, layout.OVERFLOWED, layout.RECORDED), 1):
        closes(drain, step, state)
    assert (drain.state.recorded, drain.state.lost, drain.state.unwritten) == (2, 1, 0)
    assert steps_in(drain) == [(1, 0), (3, 1)]
    assert drain._ring.released[layout.WRITES] == 2 * WRITES


@pytest.mark.usefixtures("full_after")
def test_a_step_that_cannot_be_written_is_not_one_that_the_ring_dropped(drain: Drain) -> None:
    for step in range(1, 5):
        closes(drain, step)
    assert (drain.state.recorded, drain.state.lost, drain.state.unwritten) == (2, 0, 2)
    assert steps_in(drain) == [(1, 0), (2, 0)]
    assert drain._ring.released[layout.WRITES] == 4 * WRITES  # the ring has room again all the same


def said_by(drain: Drain) -> list[tuple[int, int, int]]:
    """Steps that were recorded and lost, and bytes, of each time that the drain said so."""
    journal = (drain._recorder.directory / "journal.jsonl").read_text().splitlines()
    said = [json.loads(line) for line in journal if '"tiles"' in line]
    return [(counts["steps"], counts["lost_steps"], counts["bytes"]) for counts in said]


def test_a_drain_that_is_killed_in_a_pause_has_said_what_it_recorded(drain: Drain) -> None:
    for step, state in enumerate((layout.RECORDED, layout.OVERFLOWED), 1):
        closes(drain, step, state)
    drain.look()  # nothing new
    assert said_by(drain) == [(1, 1, drain.rate_bytes)]


def test_a_drain_that_is_killed_at_work_has_said_what_it_recorded_up_to_a_second_ago(drain: Drain) -> None:
    closes(drain, 1)
    drain._said_at -= drain_module.SAY_SECONDS
    closes(drain, 2)
    written = drain.rate_bytes
    closes(drain, 3)
    assert said_by(drain) == [(2, 0, written)]


def test_a_chunk_says_what_was_left_out_before_it_by_room_and_by_filters(drain: Drain) -> None:
    closes(drain, 1, filtered=2)
    closes(drain, 2, layout.OVERFLOWED, filtered=3)
    closes(drain, 3, filtered=7)
    chunks, _ = tile_columns.headers(drain._files._recorder.directory)
    assert [(chunk.step, chunk.lost_steps, chunk.filtered_steps) for chunk in chunks] == [(1, 0, 2), (3, 1, 5)]


@given(st.integers(0, 1 << 62), st.integers(-(10**10), 10**10), st.floats(-LARGEST_DRIFT, LARGEST_DRIFT))
def test_a_chunk_has_the_clocks_offset_when_it_was_opened(gpu_ns: int, later_ns: int, drift: float) -> None:
    ring, opened_ns = Ring([16, 16, ROOM]), max(gpu_ns + later_ns, 0)
    with tempfile.TemporaryDirectory() as folder:
        drain = Drain(Recorder(Path(folder)), ring)
        clock = drain._timer.clock
        clock.gpu_ns, clock.offset_ns, clock.drift = gpu_ns, 1234, drift
        ring.steps[0, layout.TIME_WORD] = opened_ns
        closes(drain, 1)
        drain.close()
        [chunk], _ = tile_columns.headers(drain._files._recorder.directory)
    assert chunk.opened_gpu_ns == opened_ns
    assert abs(opened_ns + chunk.offset_ns - int(clock.host_ns(np.array([opened_ns]))[0])) <= 1


def test_a_driver_that_refuses_ends_the_drain_and_keeps_what_was_whole(drain: Drain) -> None:
    closes(drain, 1)
    driver().refuse(719)
    with pytest.raises(RuntimeError, match="CUDA error 719"):
        closes(drain, 2)
    driver().refuse(0)
    assert steps_in(drain) == [(1, 0)]


def test_a_drain_follows_until_its_clock_is_due_or_it_is_told_to_end(drain: Drain) -> None:
    """Steps that are closed while it waits are taken, those before the end, too."""
    drain._timer.due_ns = 1 << 62
    follows = threading.Thread(target=drain.look)
    follows.start()
    for step in range(1, 6):
        drain._ring.closes(step, (0, 0, WRITES))
        given_up = time.monotonic() + 60
        while drain._ring.released[-1] < step and time.monotonic() < given_up:
            time.sleep(1e-4)
    drain._ring.closes(6, (0, 0, WRITES))
    drain.end()
    follows.join()
    assert not drain.wait()
    assert steps_in(drain) == [(step, 0) for step in range(1, 7)]


class Device:
    """Runs steps by the ring's own code, and writes what nobody else writes into the places it reserves."""

    def __init__(self, code: ctypes.CDLL) -> None:
        self.ring = Ring([40, 100, 30], SLOTS)
        self.recorded: dict[int, list[bytes]] = {}  # what each step that found room has in each section
        self._code = code
        self._random = np.random.default_rng(0)
        for section, (capacity, memory) in enumerate(zip(self.ring.capacities, self.ring.memory, strict=True)):
            self.ring.control[layout.CAPACITY_WORD + section] = capacity
            self.ring.control[layout.BASE_WORD + section] = memory.data_ptr()

    def step(self, number: int, counts: tuple[int, int, int]) -> None:
        ring = self.ring
        control, released, steps = (
            (ctypes.c_uint64 * words.numel()).from_address(words.data_ptr())
            for words in (ring.control, ring.released, ring.steps)
        )
        self._code.open_step(control, released, ctypes.c_uint64(1), ctypes.c_uint64(number))
        room = [control[layout.ROOM_WORD + section] for section in range(len(counts))]
        add_to_cursors(control, counts, room)
        written = []
        for section, (count, space) in enumerate(zip(counts, room, strict=True)):
            data = self._random.bytes(min(count, space) * layout.SECTIONS[section].record_bytes)
            ctypes.memmove(control[layout.ADDRESS_WORD + section], data, len(data))
            written.append(data)
        published = int(ring.published[0])
        ring.published[0] = self._code.close_step(control, released, steps, *map(ctypes.c_uint64, (number, 0)))
        if ring.published[0] > published and ring.steps[published % SLOTS, layout.STATE_WORD] == layout.RECORDED:
            self.recorded[number] = written


moves = st.lists(
    st.one_of(st.tuples(st.integers(1, 20), st.integers(1, 60), st.integers(0, 15)), st.just("look")), max_size=60
)


@settings(max_examples=150)
@given(moves, st.sampled_from([64, 200, 1 << 20]))
def test_the_file_holds_what_the_device_wrote_whenever_the_host_looks(
    code: ctypes.CDLL, moves: list, staging_bytes: int
) -> None:
    """A step is copied in several pieces where it does not fit the staging buffer."""
    device, steps = Device(code), 0
    with tempfile.TemporaryDirectory() as folder:
        drain = Drain(Recorder(Path(folder)), device.ring, staging_bytes)
        for number, move in enumerate(moves):
            if move == "look":
                drain.look()
            else:
                device.step(number, move)
                steps += 1
        drain.look()
        drain.close()
        found = {}
        for path in drain._files._recorder.directory.glob("tiles.*.kvt"):
            for chunk, data, offset in tile_columns._chunks(path, None, is_last=True):
                step = tile_columns._step(chunk, data, offset)
                found[chunk.step] = [section.tobytes() for section in (step.programs, step.ticks, step.writes)]
    assert found == device.recorded
    state = drain.state
    assert state.recorded == len(found)
    assert state.recorded + state.lost + int(device.ring.control[layout.LOST_WORD]) - state.lost_before == steps
