"""Runs the real command line in real processes, and waits for what they print."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 60
KVTRACE = (sys.executable, "-c", "from kvtrace.cli.main import main; main()")
ENGINE = """
    import os, sys
    from pathlib import Path
    from kvtrace.capture import Recorder
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


class Output:
    """What a process writes to a descriptor, read as it comes."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.data = b""

    def read_until(self, pattern: bytes) -> bytes:
        """Wait until what was written, from the start, matches; all of it is returned.

        With an empty pattern it is read to its end.
        """
        deadline = time.monotonic() + DEADLINE_S
        while not (pattern and re.search(pattern, self.data)):
            ready, _, _ = select.select([self.descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
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


@pytest.fixture
def environment() -> dict[str, str]:
    """The tests' own environment, without what would change how kvtrace behaves."""
    hidden = {"KVTRACE_RUN_DIR", "VLLM_PLUGINS", "NO_COLOR", "FORCE_COLOR"}
    return {**{key: value for key, value in os.environ.items() if key not in hidden}, "TERM": "xterm"}


@pytest.fixture
def record(tmp_path: Path, environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Run `kvtrace record` to its end, in an empty directory."""

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        options = {"cwd": tmp_path, "env": environment, "stdin": subprocess.DEVNULL, **options}
        command = [*KVTRACE, "record", *arguments]
        return subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False, **options)

    return run


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start `kvtrace record` in a session of its own; what is left of that at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def popen(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        options = {"cwd": tmp_path, "env": environment, "start_new_session": True, "bufsize": 0, **pipes, **options}
        started.append(subprocess.Popen([*KVTRACE, "record", *arguments], **options))
        return started[-1]

    yield popen
    for process in started:
        with process:
            try:
                os.killpg(process.pid, 9)
            except ProcessLookupError:
                pass


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    """Write a Python program and give its path."""

    def write(source: str, *before: str, name: str = "program.py") -> str:
        path = tmp_path / name
        path.write_text("\n".join(textwrap.dedent(part) for part in (*before, source)))
        return str(path)

    return write


@pytest.fixture
def engine(script: Callable[..., str]) -> Callable[[str], Sequence[str]]:
    """A command that records as a vLLM engine does and goes on with `source`; `step(n)` records steps."""

    def command(source: str) -> Sequence[str]:
        return [sys.executable, script(source, ENGINE)]

    return command
