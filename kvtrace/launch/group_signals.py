"""Tells a signal that the whole process group got from one sent to kvtrace alone.

`timeout`, `kill -- -PGID`, Ctrl-C and systemd signal every process of a group: the command has the signal already,
and forwarding it would deliver it twice (uvicorn takes a second SIGINT for "quit at once"). `kill PID` reaches kvtrace
only. Nothing in a signal tells the two apart, so a small process that blocks every signal sits in the group: what the
group got is pending there.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path

_DELIVERY_S = 0.02
"""A group's members get a signal one after the other, in microseconds; a supervisor may signal them in a loop."""

_PENDING = re.compile(rb"^ShdPnd:\s*([0-9a-f]+)$", re.MULTILINE)


class Witness:
    """A `cat` that waits in this process's group until `close`, or until this process is gone."""

    def __init__(self) -> None:
        self._pid = 0
        self._pipe = -1
        self._start()

    def saw(self, number: int) -> bool:
        """Return whether the group got the signal `number` that this process just received."""
        if not self._pid:
            return False
        time.sleep(_DELIVERY_S)
        try:
            found = _PENDING.search(Path(f"/proc/{self._pid}/status").read_bytes())
        except OSError:
            found = None
        if found is None:  # killed by somebody
            self._renew()
            return False
        pending = int(found[1], 16)
        if pending:
            self._renew()
        return bool(pending >> (number - 1) & 1)

    def close(self) -> None:
        """End the witness."""
        if self._pid:
            with contextlib.suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(self._pid, 0)
            self._pid = 0
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def _renew(self) -> None:
        self.close()
        self._start()

    def _start(self) -> None:
        """Start `cat`, or go without: every signal that did not come from the terminal is then forwarded."""
        with contextlib.suppress(OSError):
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            end, self._pipe = os.pipe2(os.O_CLOEXEC)
            try:
                self._pid = os.posix_spawnp(
                    "cat",
                    ["cat"],
                    {"PATH": os.environ.get("PATH", os.defpath)},
                    file_actions=[(os.POSIX_SPAWN_DUP2, end, 0), *((os.POSIX_SPAWN_DUP2, null, out) for out in (1, 2))],
                    setsigmask=signal.valid_signals(),
                )
            finally:
                os.close(end)
                os.close(null)
