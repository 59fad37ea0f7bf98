"""The process that replays: it imports vLLM once, which takes longer than most replays, and runs one plan at a time.

It is kept until this process ends, for another interpreter, another environment or another folder is asked for, or it
has ended by itself. Its standard input names plans, its standard output has a byte for each that is over.
"""

from __future__ import annotations

import atexit
import os
import select
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from kvtrace.errors import KvtraceError

MODULE = "kvtrace.lab.replay.process"


class _Process:
    def __init__(self, python: Sequence[str], environment: dict[str, str]) -> None:
        self.made_for = _place(python, environment)
        self._wrote = tempfile.TemporaryFile()  # noqa: SIM115
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [*python, "-m", MODULE], bufsize=0, stdin=pipe, stdout=pipe, stderr=self._wrote, env=environment
        )

    def run(self, plan: Path, longest_s: float) -> str:
        """Have it run a plan; returns what it wrote to standard error meanwhile."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            self._wrote.seek(0)  # its place, too
            self._wrote.truncate()
            process.stdin.write(f"{plan}\n".encode())
            ready, _, _ = select.select([process.stdout], [], [], longest_s)
            if not ready:
                raise KvtraceError(f"the replay took more than {longest_s} s and was ended")
            over = process.stdout.read(1)
        except BrokenPipeError:
            over = b""
        except BaseException:
            self.end()
            raise
        self._wrote.seek(0)
        wrote = self._wrote.read().decode(errors="replace")
        if not over:
            self.end()
        return wrote

    def is_for(self, python: Sequence[str], environment: dict[str, str]) -> bool:
        """Tell whether it can run plans for these."""
        return self._process.poll() is None and self.made_for == _place(python, environment)

    def end(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._wrote):
            assert file is not None
            file.close()


_kept: _Process | None = None  # and idle
_lock = threading.Lock()


def _place(python: Sequence[str], environment: dict[str, str]) -> tuple[object, ...]:
    folder = Path().stat()  # it may have been removed, and has no name then
    return os.getpid(), tuple(python), environment, folder.st_dev, folder.st_ino


def _exchange(process: _Process | None) -> _Process | None:
    """Keep another one instead; returns the one that was kept, unless that is not ours: a fork's parent's."""
    global _kept
    with _lock:
        before, _kept = _kept, process
    return before if before is not None and before.made_for[0] == os.getpid() else None


def run(python: Sequence[str], environment: dict[str, str], plan: Path, longest_s: float) -> str:
    """Run the jobs of a plan. Threads that do so at once have a process each.

    Args:
        python: Command of the interpreter.
        environment: Of its process.
        plan: A pickle as `process` reads it.
        longest_s: After so long it is ended.

    Returns:
        What it wrote to standard error.

    Raises:
        KvtraceError: It took longer.
    """
    process = _exchange(None)
    if process is not None and process.is_for(python, environment):
        said = process.run(plan, longest_s)
    if process is None or not process.is_for(python, environment):  # or it ended: perhaps while nothing ran
        if process is not None:
            process.end()
        process = _Process(python, environment)
        said = process.run(plan, longest_s)
    if process.is_for(python, environment) and (other := _exchange(process)) is not None:
        other.end()
    return said


def end() -> None:
    """End the process that is kept."""
    if (process := _exchange(None)) is not None:
        process.end()


atexit.register(end)
