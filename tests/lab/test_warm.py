"""The process that forks warm interpreters leaves nothing running, whatever its programs do with signals."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from pathlib import Path

import pytest

from kvtrace.lab.warm import started
from tests.vllm.conftest import vllm_environment

STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()  # as an engine core, which is no leader of its group and does not notice its parent's death
print("runs", flush=True)
time.sleep(600)
"""
PATIENCE_S = 20


@pytest.mark.vllm
def test_nothing_outlives_it(tmp_path: Path) -> None:
    """As of a sweep that ends while its cell does: the lock that the cell's processes hold is free again."""
    pytest.importorskip("vllm")
    program, lock = tmp_path / "stubborn.py", os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    program.write_text(STUBBORN)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with started((lock,), vllm_environment()) as python:
        asked = subprocess.Popen([*python, str(program)], stdout=subprocess.PIPE, env=vllm_environment())
        assert asked.stdout
        assert [asked.stdout.readline() for _ in range(2)] == [b"runs\n"] * 2
        asked.terminate()
    os.close(lock)
    asked.communicate(timeout=PATIENCE_S)
    again, deadline_s = os.open(tmp_path / "lock", os.O_RDWR), time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    os.close(again)
