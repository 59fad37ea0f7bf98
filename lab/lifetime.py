"""Ending with one's parent, so that a killed sweep leaves no engine behind."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_C = ctypes.CDLL(None)


def dies_with_us() -> Callable[[], None]:
    """Return what a child of this process calls first: SIGTERM then ends it when this process ends, or did by then.

    The kernel tells of a death after it was asked to, and a child may run for the first time when its parent is gone.
    It makes two system calls, so it may be `subprocess`'s `preexec_fn`. Linux only; elsewhere it does nothing.
    """
    parent = os.getpid()

    def ask() -> None:
        if sys.platform == "linux":
            _C.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
            if os.getppid() != parent:
                signal.raise_signal(signal.SIGTERM)

    return ask
