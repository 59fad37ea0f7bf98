"""Real processes and what they print."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable

DEADLINE_S = 30
KVTRACE = (sys.executable, "-c", "from kvtrace.cli.main import main; main()")
ENGINE = """
    import os, sys
    from pathlib import Path
    from kvtrace.capture.recorder import Recorder
    from kvtrace.events import EVENTS

    recorder = Recorder(Path(os.environ["KVTRACE_RUN_DIR"]))
    schedule = recorder.stream(EVENTS["step_schedule"])

    def step(count):
        for _ in range(count):
            schedule(*[1] * len(EVENTS["step_schedule"].fields))

    recorder.note("vllm", version="0.32.0")
    recorder.note("role", role="engine")
    recorder.open()
"""


def is_readable(descriptor: int, seconds: float) -> bool:
    """Wait until there is something to read or, of a process's descriptor, it has ended; False if that took longer."""
    waiting = select.poll()  # `select` takes the first 1,024 descriptors only
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


class Output:
    """Output of a process to a descriptor, read as it comes."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.data = b""

    def read_until(self, pattern: bytes) -> bytes:
        """Wait until what was written, from the start, matches; all of it is returned.

        With an empty pattern it is read to its end.
        """
        deadline = time.monotonic() + DEADLINE_S
        while not (pattern and re.search(pattern, self.data)):
            if not is_readable(self.descriptor, max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"{pattern!r} was not written in {DEADLINE_S} s, but: {self.data!r}")
            try:
                chunk = os.read(self.descriptor, 65536)
            except OSError:  # how a pseudo-terminal ends
                chunk = b""
            if not chunk:
                if pattern:
                    raise AssertionError(f"ended without {pattern!r}: {self.data!r}")
                break
            self.data += chunk
        return self.data


Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
"""Runs `kvtrace record` with some arguments to its end."""

Start = Callable[..., "subprocess.Popen[bytes]"]
"""Starts it, with pipes."""

Script = Callable[..., str]
"""Writes a Python program and gives its path."""

Engine = Callable[[str], list[str]]
"""A command that records as vLLM's engine does and goes on with some source."""
