"""Ends of a step's tiles: written, dropped for want of room in the ring, or not to be written any more."""

from __future__ import annotations

import ctypes
import json
import resource
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from kvtrace.capture.recorder import Recorder
from kvtrace.format.tile_file import FILE_HEADER_BYTES
from kvtrace.ingest.derive import tile_columns
from kvtrace.probes.device.tiles import drain as drain_module
from kvtrace.probes.device.tiles import layout
from kvtrace.probes.device.tiles.drain import TileDrain
from kvtrace.probes.device.tiles.files import TileFiles
from kvtrace.probes.device.tiles.ring import STEP_SLOTS
from kvtrace.probes.device.timer import HostClock
from tests.probes.tiles.ring_code import SLOTS, add_to_cursors

WRITES = 1000
STEP_BYTES = WRITES * layout.SECTIONS[layout.WRITES].record_bytes
ROOM = 10 * WRITES


class Ring:
    """Of a device whose memory is the host's."""

    def __init__(self, capacities: Sequence[int], slots: int = STEP_SLOTS) -> None:
        self.capacities = list(capacities)
        self.memory = [
            torch.zeros(capacity * section.record_bytes, dtype=torch.uint8)
            for capacity, section in zip(capacities, layout.SECTIONS, strict=True)
        ]
        self.control = torch.zeros(layout.CONTROL_WORDS, dtype=torch.int64)
        self.released = torch.zeros(len(layout.SECTIONS) + 1, dtype=torch.int64)
        self.steps = torch.zeros((slots, layout.STEP_WORDS), dtype=torch.int64)
        self.published = torch.zeros(1, dtype=torch.int64)


class Drain(TileDrain):
    """Of such a ring."""

    def __init__(self, recorder: Recorder, ring: Ring) -> None:
        self._ring: Any = ring
        self._engine_pid, self._opened, self._reported, self._lost_before = 1, deque(), (0, 0), 0
        self._files, self._recorder = TileFiles(recorder, {}), recorder
        self._timer: Any = SimpleNamespace(clock=HostClock())
        self._stream: Any = SimpleNamespace(synchronize=lambda: None)
        self._staging = torch.zeros(drain_module.STAGING_BYTES, dtype=torch.uint8)
        self._staged = self._staging.numpy()
        self._steps, self._published, self._released = ring.steps.numpy(), ring.published.numpy(), ring.released.numpy()
        self.recorded = self.lost = self.unwritten = self.filtered = self.tiles = self._drained = 0
        self._said, self._said_at = {}, 0.0

    def closes(self, step: int, state: int) -> None:
        """The device closes a step of 1,000 writes, which begin where the last one's ended, and is looked at."""
        words = self._steps[step - 1]
        words[layout.STEP_WORD], words[layout.STATE_WORD] = step, state
        words[layout.START_WORD + layout.WRITES] = self._released[layout.WRITES]
        words[layout.COUNT_WORD + layout.WRITES] = WRITES
        self._published += 1
        self.look()


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
        drain.closes(step, state)
    assert (drain.recorded, drain.lost, drain.unwritten) == (2, 1, 0)
    assert steps_in(drain) == [(1, 0), (3, 1)]
    assert drain._released[layout.WRITES] == 2 * WRITES


@pytest.mark.usefixtures("full_after")
def test_a_step_that_cannot_be_written_is_not_one_that_the_ring_dropped(drain: Drain) -> None:
    for step in range(1, 5):
        drain.closes(step, layout.RECORDED)
    assert (drain.recorded, drain.lost, drain.unwritten) == (2, 0, 2)
    assert steps_in(drain) == [(1, 0), (2, 0)]
    assert drain._released[layout.WRITES] == 4 * WRITES  # the ring has room again all the same


def test_a_drain_that_is_killed_in_a_pause_has_said_what_it_recorded(drain: Drain) -> None:
    for step, state in enumerate((layout.RECORDED, layout.OVERFLOWED), 1):
        drain.closes(step, state)
    drain.look()  # nothing new
    journal = (drain._recorder.directory / "journal.jsonl").read_text().splitlines()
    said = [json.loads(line) for line in journal if '"tiles"' in line]
    assert [(counts["steps"], counts["lost_steps"], counts["bytes"]) for counts in said] == [(1, 1, drain.rate_bytes)]


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
        ring.published[0] = self._code.close_step(control, released, steps, ctypes.c_uint64(number))
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
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(drain_module, "STAGING_BYTES", staging_bytes)
        patch.setattr(drain_module, "STEP_SLOTS", SLOTS)
        drain = Drain(Recorder(Path(folder)), device.ring)
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
    assert drain.recorded == len(found)
    assert drain.recorded + drain.lost + int(device.ring.control[layout.LOST_WORD]) - drain._lost_before == steps
