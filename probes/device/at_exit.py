"""Exit functions that also run in children of multiprocessing."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from multiprocessing import util


def at_end(finish: Callable[[], None]) -> None:
    """Call `finish` before the process ends in an orderly way; it may be called twice.

    Children of multiprocessing, as vLLM's engine and workers are, leave out what `atexit` knows.
    """
    atexit.register(finish)
    util.Finalize(None, finish, exitpriority=100)
