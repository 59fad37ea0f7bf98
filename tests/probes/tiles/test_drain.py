"""Ends of a step's tiles: written, dropped for want of room in the ring, or not to be written any more."""

from __future__ import annotations

import json
import resource
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from kvtrace.capture.recorder import Recorder
from kvtrace.format.tile_file import FILE_HEADER_BYTES
from kvtrace.ingest.derive import tile_columns
from kvtrace.probes.device.tiles import layout
from kvtrace.probes.device.tiles.drain import STAGING_BYTES, TileDrain
from kvtrace.probes.device.tiles.files import TileFiles
from kvtrace.probes.device.timer import HostClock

WRITES = 1000
STEP_BYTES = WRITES * layout.SECTIONS[layout.WRITES].record_bytes
ROOM = 10 * WRITES


class Drain(TileDrain):
    """Of a ring in the host's memory, with 1,000 writes a step."""

    def __init__(self, recorder: Recorder) -> None:
        capacities = [16, 16, ROOM]
        memory = [
            torch.zeros(capacity * section.record_bytes, dtype=torch.uint8)
            for capacity, section in zip(capacities, layout.SECTIONS, strict=True)
        ]
        self._ring: Any = SimpleNamespace(capacities=capacities, memory=memory)
        self._engine_pid, self._opened, self._reported, self._lost_before = 1, deque(), (0, 0), 0
        self._files = TileFiles(recorder, {})
        self._timer: Any = SimpleNamespace(clock=HostClock())
        self._stream: Any = SimpleNamespace(synchronize=lambda: None)
        self._staging = torch.zeros(STAGING_BYTES, dtype=torch.uint8)
        self._staged, self._released = self._staging.numpy(), np.zeros(len(layout.SECTIONS), np.int64)
        self.recorded = self.lost = self.unwritten = self.filtered = self.tiles = self._drained = 0
        self._published, self._recorder = np.zeros(1, np.int64), recorder
        self._said, self._said_at = {}, 0.0

    def closes(self, step: int, state: int) -> None:
        """The device has closed a step, whose writes begin where the last one's ended."""
        words = np.zeros(layout.STEP_WORDS, np.int64)
        words[layout.STEP_WORD], words[layout.STATE_WORD] = step, state
        words[layout.START_WORD + layout.WRITES] = self._released[layout.WRITES]
        words[layout.COUNT_WORD + layout.WRITES] = WRITES
        self._take(words)


@pytest.fixture
def drain(tmp_path: Path) -> Iterator[Drain]:
    recorder = Recorder(tmp_path)
    made = Drain(recorder)
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
    drain.look()
    drain.look()  # nothing new
    journal = (drain._recorder.directory / "journal.jsonl").read_text().splitlines()
    said = [json.loads(line) for line in journal if '"tiles"' in line]
    assert [(counts["steps"], counts["lost_steps"], counts["bytes"]) for counts in said] == [(1, 1, drain.rate_bytes)]
