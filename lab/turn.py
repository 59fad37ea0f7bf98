"""Cells whose engines start side by side, and whose requests go one cell after another: each waits for its turn.

CELL_DIR/wait     while it is there, the cell sends nothing; in it is how many engines start side by side
CELL_DIR/ready    the cell's engine is up, and the cell waits
"""

from __future__ import annotations

import time
from pathlib import Path

_WAIT, _READY = "wait", "ready"
_LOOK_S = 0.02


def hold(directory: Path, engines: int) -> None:
    """Have a cell wait, once its engine is ready."""
    (directory / _WAIT).write_text(f"{engines}\n")


def is_ready(directory: Path) -> bool:
    """Return whether the cell waits for its turn."""
    return (directory / _READY).exists()


def let_go(directory: Path) -> None:
    """Let the cell send its requests."""
    for name in (_READY, _WAIT):
        (directory / name).unlink(missing_ok=True)


def engines_beside(directory: Path) -> int:
    """How many engines share the device, this cell's counted in."""
    try:
        return int((directory / _WAIT).read_text())
    except FileNotFoundError:
        return 1


def wait_for_turn(directory: Path) -> float:
    """Say that the engine is ready, and return when the cell may send its requests: after how many seconds."""
    if not (directory / _WAIT).exists():
        return 0.0
    began_s = time.monotonic()
    (directory / _READY).touch()
    while (directory / _WAIT).exists():
        time.sleep(_LOOK_S)
    return time.monotonic() - began_s
