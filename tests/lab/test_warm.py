"""The process that forks warm interpreters leaves nothing running, whatever its programs do with signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
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


SERVER = """
import os, signal, sys
from pathlib import Path
from kvtrace.lab import warm
warm._preload = lambda: None
if sys.argv[2] != "idle":
    os.register_at_fork(**{sys.argv[2]: lambda: os.kill(os.getpid(), signal.SIGTERM)})
warm.serve(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("moment", ["idle", "before", "after_in_parent"])
def test_it_ends_whenever_it_is_asked(tmp_path: Path, moment: str) -> None:
    """Python ignores what a signal's handler raises where it calls back, as around a fork."""
    path, program = tmp_path / "socket", tmp_path / "program.py"
    program.write_text("import time\ntime.sleep(600)\n")
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(path), moment])
    asked = None
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not path.exists():
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if moment == "idle":
            server.terminate()
        else:
            command = [sys.executable, "-m", "kvtrace.lab.warm", "run", str(path), str(program)]
            asked = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert server.wait(PATIENCE_S) == 128 + signal.SIGTERM
        if asked:
            assert asked.communicate(timeout=PATIENCE_S) == (b"", None)  # the program does not hold its caller's stream
            assert asked.returncode == 1
    finally:
        server.kill()
        if asked:
            asked.kill()
