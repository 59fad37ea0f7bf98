"""When a thread that drains a device's ring looks at it.

While it runs Python the engine's threads cannot, and a step's results, or the next step, come later by as much. Right
after a step has been enqueued the engine's next work is to wait for the GPU, so that is when to look.
"""

from __future__ import annotations

import threading
import time

IDLE_SECONDS = 0.25
"""How long the last steps before a pause stay on the device."""


class Pace:
    """Lets one thread wait until another has enqueued a step.

    Args:
        seconds: It is not to look more often than this.
        idle_seconds: It is to look then, though nothing has been enqueued.
    """

    def __init__(self, seconds: float, idle_seconds: float = IDLE_SECONDS) -> None:
        self._seconds = seconds
        self._idle_seconds = idle_seconds
        self._due = 0.0
        self._over = False
        self._wake = threading.Event()

    def enqueued(self) -> None:
        """A step has been enqueued."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + self._seconds
            self._wake.set()

    def wait(self) -> bool:
        """Until it is time to look. False: there is nothing to come any more."""
        self._wake.wait(self._idle_seconds)
        self._wake.clear()
        return not self._over

    def end(self) -> None:
        """Nothing will be enqueued any more."""
        self._over = True
        self._wake.set()
