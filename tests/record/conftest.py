"""Runs the real command line in real processes, and waits for what they print."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.record.processes import DEADLINE_S, ENGINE, KVTRACE, Engine, Run, Script, Start


@pytest.fixture
def environment() -> dict[str, str]:
    """The tests' own environment, without what would change how kvtrace behaves."""
    hidden = {"KVTRACE_RUN_DIR", "VLLM_PLUGINS", "NO_COLOR", "FORCE_COLOR"}
    return {**{key: value for key, value in os.environ.items() if key not in hidden}, "TERM": "xterm"}


@pytest.fixture
def record(tmp_path: Path, environment: dict[str, str]) -> Run:
    """Run `kvtrace record` to its end, in an empty directory."""

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        options = {"cwd": tmp_path, "env": environment, "stdin": subprocess.DEVNULL, **options}
        command = [*KVTRACE, "record", *arguments]
        return subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False, **options)

    return run


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str]) -> Iterator[Start]:
    """Start `kvtrace record` in a session of its own; what is left of that at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def popen(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        options = {"cwd": tmp_path, "env": environment, "start_new_session": True, "bufsize": 0, **pipes, **options}
        started.append(subprocess.Popen([*KVTRACE, "record", *arguments], **options))
        return started[-1]

    yield popen
    for process in started:
        with process, contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Write a Python program and give its path."""

    def write(source: str, *before: str, name: str = "program.py") -> str:
        path = tmp_path / name
        path.write_text("\n".join(textwrap.dedent(part) for part in (*before, source)))
        return str(path)

    return write


@pytest.fixture
def engine(script: Script) -> Engine:
    """A command that records as a vLLM engine does and goes on with `source`; `step(n)` records steps."""

    def command(source: str) -> list[str]:
        return [sys.executable, script(source, ENGINE)]

    return command
