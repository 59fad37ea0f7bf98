"""A clock that only moves when it is told to. vLLM, its policies and kvtrace's probes read it during a replay."""

from __future__ import annotations

import time

from kvtrace.capture import _native


class VirtualClock:
    """Takes the place of `time`'s clocks in this process. Both read UNIX time, so replayed times need no offset.

    Between two moves kvtrace's hooks, which read `monotonic_ns`, find each reading 1 ns later than the one before: what
    becomes of a lookup is derived from the order of records in several tables.

    Attributes:
        now_ns: The time, ns.
    """

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns
        _native.set_virtual_clock(now_ns)

    def install(self) -> None:
        """Replace the clocks for the rest of the process's life."""
        time.monotonic_ns = _native.now_ns
        time.time_ns = lambda: self.now_ns
        time.monotonic = time.time = lambda: self.now_ns / 1e9

    def set(self, now_ns: int) -> None:
        """Move the clock. It never moves backwards."""
        if now_ns > self.now_ns:
            self.now_ns = now_ns
            _native.set_virtual_clock(now_ns)
