"""The process that forks warm interpreters leaves nothing running, and its programs end as ever."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
import os, signal, sys, time
from pathlib import Path
from kvtrace.lab import warm
warm._preload = lambda: None
server = os.getpid()
def end():
    os.kill(server, signal.SIGTERM)
    while sys.argv[2] == "after_in_child" and os.getppid() == server:  # it comes to run when the server is gone
        time.sleep(0.01)
if sys.argv[2] != "idle":
    os.register_at_fork(**{sys.argv[2]: end})
warm.serve(Path(sys.argv[1]))
"""


@contextmanager
def serving(path: Path, moment: str = "idle") -> Iterator[subprocess.Popen[bytes]]:
    """A server without vLLM, which asks itself to end at that moment of a fork."""
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(path), moment])
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not path.exists():
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield server
    finally:
        server.kill()
        server.wait()


def asking(path: Path, program: Path) -> list[str]:
    return [sys.executable, "-m", "kvtrace.lab.warm", "run", str(path), str(program)]


@pytest.mark.parametrize("moment", ["idle", "before", "after_in_parent", "after_in_child"])
def test_it_ends_whenever_it_is_asked(tmp_path: Path, moment: str) -> None:
    """Python ignores what a signal's handler raises where it calls back, as around a fork."""
    path, program = tmp_path / "socket", tmp_path / "program.py"
    program.write_text("import time\ntime.sleep(600)\n")
    asked = None
    try:
        with serving(path, moment) as server:
            if moment == "idle":
                server.terminate()
            else:
                asked = subprocess.Popen(asking(path, program), stdout=subprocess.PIPE)
            assert server.wait(PATIENCE_S) == 128 + signal.SIGTERM
            if asked:
                assert asked.communicate(timeout=PATIENCE_S) == (b"", None)  # the program does not hold its stream
                assert asked.returncode == 1
    finally:
        if asked:
            asked.kill()


ENDING = """
import atexit, ctypes, sys, threading, time
libc = ctypes.CDLL(None)
libc.fopen.restype, libc.fputs.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_void_p)
libc.fputs(b"of C, which writes in the end", libc.fopen(sys.argv[0].encode() + b".txt", b"w"))
atexit.register(print, "Python's handler")
threading.Thread(target=lambda: (time.sleep(0.2), print("a thread"))).start()
print("the program", end="; ")
"""
ENDS = {
    "": (0, ""),
    "sys.exit()": (0, ""),
    "sys.exit(3)": (3, ""),
    "sys.exit('why')": (1, "why"),
    "raise ValueError('why')": (1, "ValueError: why"),
}


@pytest.mark.parametrize("end", ENDS)
def test_programs_end_as_of_an_interpreter_of_their_own(tmp_path: Path, end: str) -> None:
    path, program = tmp_path / "socket", tmp_path / "program.py"
    program.write_text(ENDING + end)
    written = program.with_name("program.py.txt")
    code, last = ENDS[end]
    with serving(path):
        for command in ([sys.executable, str(program)], asking(path, program)):
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
            assert (done.returncode, done.stdout) == (code, "the program; a thread\nPython's handler\n")
            assert done.stderr.splitlines()[-1:] == ([last] if last else [])
            assert written.read_text() == "of C, which writes in the end"
            written.unlink()
