"""The ring's own code, compiled for the CPU."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import MutableSequence
from pathlib import Path

from kvtrace.probes.device.tiles import layout, ring

SLOTS = 4
"""Closed steps that may wait for the host."""


def compiled(folder: Path) -> ctypes.CDLL:
    """A library with `open_step` and `close_step`, made in a folder."""
    source = ring.RING_CODE.replace(f"#define STEP_SLOTS {ring.STEP_SLOTS}", f"#define STEP_SLOTS {SLOTS}")
    heads = '#define DEVICE extern "C"\n#define CONSTANT static const\n'
    (folder / "ring.cpp").write_text(heads + source)
    subprocess.run(["c++", "-shared", "-fPIC", "-O1", "-o", folder / "ring.so", folder / "ring.cpp"], check=True)
    library = ctypes.CDLL(str(folder / "ring.so"))
    library.close_step.restype = ctypes.c_uint64
    return library


def add_to_cursors(control: MutableSequence[int], counts: tuple[int, int, int], room: list[int]) -> None:
    """Count a step's records as its programs do: where there is any room, enough or not."""
    programs, tiles, writes = counts
    if room[layout.TILES]:
        control[layout.CURSOR_WORDS[layout.PROGRAMS]] += (programs << layout.TILE_BITS) + tiles
    if room[layout.WRITES]:
        control[layout.CURSOR_WORDS[layout.WRITES]] += writes
