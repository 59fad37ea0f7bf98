"""The process that forks warm interpreters leaves nothing running, whatever its programs do with signals."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kvtrace.lab.sweep import locked
from kvtrace.lab.warm import started
from tests.vllm.conftest import vllm_environment

STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()  # as an engine core, which is no leader of its group and does not notice its parent's death
os.write(1, b"runs\\n")  # in one piece: `print` may write the line's end on its own, and the other's line between
time.sleep(600)
"""
PATIENCE_S = 20


@pytest.mark.vllm
def test_nothing_outlives_it(tmp_path: Path) -> None:
    """As of a sweep that ends while its cell does: the lock that the cell's processes hold is free for the next one."""
    pytest.importorskip("vllm")
    program, sweep = tmp_path / "stubborn.py", tmp_path / "sweep"
    program.write_text(STUBBORN)
    with locked(sweep, (1, 1)) as lock, started((lock,), vllm_environment()) as python:
        asked = subprocess.Popen([*python, str(program)], stdout=subprocess.PIPE, env=vllm_environment())
        assert asked.stdout
        assert [asked.stdout.readline() for _ in range(2)] == [b"runs\n"] * 2
        asked.terminate()
    asked.communicate(timeout=PATIENCE_S)
    with locked(sweep, (1, 1)):
        pass  # it raises, had it to wait for too long
