"""A drain of a ring that lies in the host's memory, where what is copied is there when the stream is synchronized."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from kvtrace.capture.recorder import Recorder
from kvtrace.probes.device.tiles import layout
from kvtrace.probes.device.tiles.drain import STAGING_BYTES, TileDrain
from kvtrace.probes.device.tiles.files import TileFiles
from kvtrace.probes.device.tiles.ring import STEP_SLOTS
from kvtrace.probes.device.timer import HostClock

_DRIVER = """
#include <cstring>
#include <vector>
struct Piece { void* to; const void* from; size_t bytes; };
static std::vector<Piece> pieces;
static int refuses;
extern "C" void refuse(int error) { refuses = error; }
extern "C" int copy(void* to, unsigned long long from, size_t bytes, void*) {
    pieces.push_back({to, (const void*)from, bytes});
    return 0;
}
extern "C" int synchronize(void*) {
    for (const Piece& piece : pieces) memcpy(piece.to, piece.from, piece.bytes);
    pieces.clear();
    return refuses;
}
"""

Write = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, use_errno=True)


@cache
def driver() -> ctypes.CDLL:
    """The part of CUDA's driver that a drain calls, for this memory. `refuse` sets the error that it returns."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "driver.cpp"), Path(folder, "driver.so")
        source.write_text(_DRIVER)
        subprocess.run(["c++", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        return ctypes.CDLL(str(library))


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

    def closes(self, step: int, counts: Sequence[int], state: int = layout.RECORDED, filtered: int = 0) -> None:
        """Close a step as the device does: its records begin where the last one's end that has been released."""
        published = int(self.published[0])
        words = self.steps.numpy()[published % len(self.steps)]
        words[layout.STEP_WORD], words[layout.STATE_WORD], words[layout.FILTERED_BEFORE_WORD] = step, state, filtered
        for section, (count, capacity) in enumerate(zip(counts, self.capacities, strict=True)):
            start = int(self.released[section])
            start += capacity - start % capacity if start % capacity + count > capacity else 0
            words[layout.START_WORD + section], words[layout.COUNT_WORD + section] = start, count
        self.published[0] = published + 1


class Drain(TileDrain):
    """Of such a ring; `look` takes home what has been closed, and comes back."""

    def __init__(self, recorder: Recorder, ring: Ring, staging_bytes: int = STAGING_BYTES) -> None:
        self._recorder = recorder
        self._timer: Any = SimpleNamespace(clock=HostClock(), due_ns=0)
        self._staging = torch.zeros(staging_bytes, dtype=torch.uint8)
        self._follow(ring, TileFiles(recorder, {}), 1)  # type: ignore[arg-type]
        for name in ("copy", "synchronize"):
            setattr(self.state, name, ctypes.cast(getattr(driver(), name), ctypes.c_void_p).value)

    def write_with(self, write: Callable[[int, int, int], int]) -> None:
        """Let a function write: given the descriptor, an address and how many bytes. It may set ctypes' errno."""
        self._write = Write(write)
        self.state.write = ctypes.cast(self._write, ctypes.c_void_p).value
