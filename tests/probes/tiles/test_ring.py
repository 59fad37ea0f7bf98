"""The ring's own code, compiled for the CPU: whatever the engine writes and however late the host, nothing is torn."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.probes.device import graph_timestamps, timer
from kvtrace.probes.device.tiles import layout, ring
from kvtrace.probes.device.tiles.layout import SECTIONS
from tests.probes.tiles.ring_code import SLOTS, add_to_cursors

CAPACITIES = (40, 100, 30)
NVCC = shutil.which("nvcc")
Words = ctypes.c_uint64 * layout.CONTROL_WORDS


class Machine:
    """A device that writes steps and a host that frees them."""

    def __init__(self, code: ctypes.CDLL) -> None:
        self.code = code
        self.control = Words()
        self.steps = (ctypes.c_uint64 * (SLOTS * layout.STEP_WORDS))()
        self.released = (ctypes.c_uint64 * (len(SECTIONS) + 1))()
        for section, capacity in enumerate(CAPACITIES):
            self.control[layout.CAPACITY_WORD + section] = capacity
            self.control[layout.BASE_WORD + section] = (section + 1) << 20
        self.held: list[list[int]] = []  # descriptions that the host has not freed

    def step(self, number: int, counts: tuple[int, int, int], *, enabled: bool) -> tuple[int, list[int]]:
        """Run a step; how many are published, and the room it had."""
        self.code.open_step(self.control, self.released, ctypes.c_uint64(enabled), ctypes.c_uint64(number))
        room = [self.control[layout.ROOM_WORD + section] for section in range(3)]
        add_to_cursors(self.control, counts, room)
        before = self.control[layout.PUBLISHED_WORD]
        published = self.code.close_step(self.control, self.released, self.steps, *map(ctypes.c_uint64, (number, 0)))
        if published > before:
            at = before % SLOTS * layout.STEP_WORDS
            self.held.append(list(self.steps[at : at + layout.STEP_WORDS]))
        return published, room

    def free(self) -> None:
        """The host has copied the oldest step."""
        oldest = self.held.pop(0)
        for section in range(3):
            count = oldest[layout.COUNT_WORD + section] if oldest[layout.STATE_WORD] == layout.RECORDED else 0
            self.released[section] = oldest[layout.START_WORD + section] + count
        self.released[3] += 1


def pieces(description: list[int], section: int) -> range:
    start = description[layout.START_WORD + section] % CAPACITIES[section]
    return range(start, start + description[layout.COUNT_WORD + section])


moves = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 50), st.integers(0, 120), st.integers(0, 40), st.booleans()),
        st.just("free"),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(moves)
def test_recorded_steps_lie_whole_apart_and_in_the_ring(code: ctypes.CDLL, moves: list) -> None:
    machine = Machine(code)
    lost = 0
    for number, move in enumerate(moves):
        if move == "free":
            if machine.held:
                machine.free()
            continue
        *counts, enabled = move
        waiting = len(machine.held)
        published, room = machine.step(number, tuple(counts), enabled=enabled)
        if waiting >= SLOTS:
            lost += 1
            assert len(machine.held) == waiting
            assert machine.control[layout.LOST_WORD] == lost
            continue
        described = machine.held[-1]
        assert described[layout.STEP_WORD] == number
        assert described[layout.LOST_BEFORE_WORD] == lost
        fits = all(room) and all(count <= space for count, space in zip(counts, room, strict=True))
        expected = layout.RECORDED if enabled and fits else layout.OVERFLOWED
        assert described[layout.STATE_WORD] == expected
        assert published == machine.control[layout.PUBLISHED_WORD]
    kept = [held for held in machine.held if held[layout.STATE_WORD] == layout.RECORDED]
    for section, capacity in enumerate(CAPACITIES):
        taken = [place for held in kept for place in pieces(held, section)]
        assert len(taken) == len(set(taken))
        assert all(place < capacity for place in taken)


def test_a_step_that_opened_without_a_slot_is_lost_even_if_one_is_freed_meanwhile(code: ctypes.CDLL) -> None:
    machine = Machine(code)
    for number in range(SLOTS):
        machine.step(number, (1, 1, 1), enabled=True)
    machine.code.open_step(machine.control, machine.released, ctypes.c_uint64(True), ctypes.c_uint64(SLOTS))
    machine.free()
    machine.code.close_step(machine.control, machine.released, machine.steps, *map(ctypes.c_uint64, (SLOTS, 0)))
    assert machine.steps[layout.STATE_WORD] == layout.OVERFLOWED


def test_between_steps_nothing_finds_room(code: ctypes.CDLL) -> None:
    """Dummy runs, and steps that are left out: the host opens none for them."""
    machine = Machine(code)
    machine.step(1, (10, 10, 10), enabled=True)
    assert not any(machine.control[layout.ROOM_WORD + section] for section in range(len(SECTIONS)))


def test_an_empty_ring_offers_at_least_half_of_itself(code: ctypes.CDLL) -> None:
    machine = Machine(code)
    for number in range(200):
        _, room = machine.step(number, (7, 13, 5), enabled=True)
        assert all(2 * space >= capacity for space, capacity in zip(room, CAPACITIES, strict=True))
        machine.free()


def test_a_step_that_finds_no_room_leaves_its_place_to_the_next(code: ctypes.CDLL) -> None:
    machine = Machine(code)
    machine.step(1, (10, 10, 10), enabled=True)
    machine.step(2, (10, 1000, 10), enabled=True)
    machine.step(3, (10, 10, 10), enabled=True)
    states = [held[layout.STATE_WORD] for held in machine.held]
    assert states == [layout.RECORDED, layout.OVERFLOWED, layout.RECORDED]
    assert pieces(machine.held[2], layout.TILES) == range(10, 20)


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", ["ring", "timer", "stamps"])
def test_cuda_sources_compile(tmp_path: Path, architecture: str, name: str) -> None:
    source = {"ring": ring.CUDA_SOURCE, "timer": timer.SOURCE, "stamps": graph_timestamps.SOURCE}[name]
    (tmp_path / "source.cu").write_text(source)
    done = subprocess.run(
        [NVCC, f"-arch={architecture}", "-std=c++17", "-cubin", "-o", "out.cubin", "source.cu"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
