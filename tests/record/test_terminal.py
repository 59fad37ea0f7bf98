"""Recording at a terminal: Ctrl-C, Ctrl-Z, the status line."""

from __future__ import annotations

import os
import pty
import re
import shlex
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.record.processes import KVTRACE, Engine, Output, Run, Script

CTRL_C, CTRL_Z = b"\x03", b"\x1a"
STATUS = re.compile(rb"\x1b7\x1b\[\d+;1H\x1b\[0m\x1b\[2K[^\n]* kvtrace [^\n]*\x1b8")
COUNTS = rb"1 process  [1-9]\d* records"
REGION_SET, REGION_GIVEN_BACK = rb"\x1b\[1;\d+r", rb"\x1b\[r"


class Terminal:
    """A pseudo-terminal with a process in it."""

    def __init__(self, command: list[str], environment: dict[str, str], directory: str) -> None:
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(directory)
                termios.tcsetwinsize(0, (24, 100))
                os.execve(command[0], command, environment)
            finally:
                os._exit(99)
        os.set_inheritable(self.descriptor, False)
        self.output = Output(self.descriptor)
        self.read_until = self.output.read_until

    def type(self, keys: bytes) -> None:
        os.write(self.descriptor, keys)

    def end(self) -> tuple[int, bytes]:
        """Read until the process has gone; its exit code and all that was shown."""
        shown = self.read_until(b"")
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), shown


Open = Callable[..., Terminal]
"""Runs `kvtrace record` with some arguments in a terminal."""


@pytest.fixture
def terminal(environment: dict[str, str], tmp_path: Path) -> Iterator[Open]:
    started: list[Terminal] = []

    def start(*arguments: str, **changes: str) -> Terminal:
        command = [*KVTRACE, "record", *arguments]
        started.append(Terminal(command, {**environment, **changes}, str(tmp_path)))
        return started[-1]

    yield start
    for one in started:
        os.close(one.descriptor)  # hangs up


@pytest.fixture
def shell(environment: dict[str, str], tmp_path: Path) -> Iterator[Terminal]:
    """A shell with job control. Ends with the terminal."""
    bash = Terminal(["/bin/bash", "--norc", "-i"], {**environment, "PS1": "ready> "}, str(tmp_path))
    bash.read_until(b"ready> ")
    yield bash
    os.close(bash.descriptor)
    os.waitpid(bash.pid, 0)


INTERRUPTIBLE = """
    import os, signal, sys

    count = 0

    def interrupted(number, frame):
        global count
        count += 1
        os.write(1, f"<interrupt {count}>".encode())

    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGUSR2, lambda *_: (os.write(1, b"<end>"), os._exit(7)))
    os.write(1, f"pid {os.getpid()}.".encode())
    while True:
        signal.pause()
"""


def interrupt_twice(window: Terminal) -> tuple[int, bytes]:
    """Press Ctrl-C twice in a window that runs `INTERRUPTIBLE`, then let it end; returns what `Terminal.end` does."""
    window.type(CTRL_C)
    window.read_until(b"<interrupt 1>")
    window.type(CTRL_C)
    shown = window.read_until(b"<interrupt 2>")
    os.kill(int(re.search(rb"pid (\d+)", shown)[1]), 12)
    return window.end()


def test_ctrl_c_reaches_the_command_once_and_kvtrace_waits_for_it(terminal: Open, script: Script) -> None:
    window = terminal("--no-preflight", "-o", "run", sys.executable, script(INTERRUPTIBLE))
    window.read_until(rb"pid \d+\.")
    code, shown = interrupt_twice(window)

    assert code == 7
    assert b"<interrupt 3>" not in shown
    assert b"no vLLM process recorded anything" in shown


def test_ctrl_c_ends_kvtrace_as_it_ends_the_command(terminal: Open) -> None:
    window = terminal("-o", "run", "sh", "-c", "echo ready; exec sleep 600")
    window.read_until(b"ready")
    window.type(CTRL_C)
    assert window.end()[0] == -2


def test_the_terminal_is_the_commands_own(terminal: Open) -> None:
    window = terminal("-o", "run", "sh", "-c", "test -t 0 && test -t 1 && test -t 2 && stty size < /dev/tty && exit 4")
    assert window.end()[0] == 4


def test_the_status_line_counts_what_is_recorded_and_goes_away(terminal: Open, engine: Engine) -> None:
    window = terminal("-o", "run", *engine("step(1234); print('steady'); sys.stdin.readline()"))
    window.read_until(b"1 process  1,234 records")
    window.type(b"\n")
    code, shown = window.end()

    assert code == 0
    assert STATUS.search(shown)
    assert len(re.findall(REGION_SET, shown)) == 1
    assert re.search(REGION_GIVEN_BACK, shown)
    assert not STATUS.search(shown, re.search(REGION_GIVEN_BACK, shown).end())
    assert b"kvtrace: recorded 1 process" in shown


def test_what_the_command_shows_is_never_cut(terminal: Open, script: Script) -> None:
    """Every line comes out whole although the status line is drawn meanwhile."""
    chatty = """
        import select
        count = 0
        while not select.select([0], [], [], 0.002)[0]:
            print(f"line {count} of a chatty command", flush=True)
            count += 1
        print("lines", count, flush=True)
    """
    window = terminal("--no-preflight", "-o", "run", sys.executable, script(chatty))
    window.read_until(rb"[\s\S]*?".join([STATUS.pattern] * 3))
    window.type(b"\n")
    code, shown = window.end()

    assert code == 0
    plain = re.sub(rb"\x1b(?:7|8|D|\[[\d;]*[A-Za-z])", b"", STATUS.sub(b"", shown))
    count = int(re.search(rb"lines (\d+)", plain)[1])
    lines = [line for line in plain.splitlines() if line.startswith(b"line ")]
    assert lines == [f"line {n} of a chatty command".encode() for n in range(count)]


@pytest.mark.parametrize(("options", "changes"), [(["--quiet"], {}), ([], {"TERM": "dumb"})])
def test_no_status_line_when_not_wanted_or_not_possible(
    terminal: Open, options: list[str], changes: dict[str, str]
) -> None:
    window = terminal("-o", "run", *options, "sleep", "1.2", **changes)
    code, shown = window.end()
    assert code == 0
    assert not STATUS.search(shown)
    assert not re.search(REGION_SET, shown)


def test_the_summary_begins_on_a_line_of_its_own(terminal: Open) -> None:
    for command, expected in (("printf open", b"open" + b" " * 100), ("echo whole", b"whole\r\n" + b" " * 100)):
        _, shown = terminal("sh", "-c", command).end()
        assert expected + b"\r\x1b[Kkvtrace: " in shown


def test_no_status_line_where_stderr_is_not_a_terminal(record: Run) -> None:
    result = record("-o", "run", "sleep", "1.2")
    assert b"\x1b" not in result.stderr


def test_ctrl_z_stops_both_and_fg_goes_on(shell: Terminal, engine: Engine) -> None:
    source = "step(10); print('wait' + 'ing', flush=True); print('got', sys.stdin.readline().upper())"
    command = shlex.join(engine(source))
    kvtrace = shlex.join([*KVTRACE, "record", "-o", "run"])
    shell.type(f"{kvtrace} -- {command}\n".encode())
    shell.read_until(b"waiting")
    shell.read_until(COUNTS)
    shell.type(CTRL_Z)
    shown = shell.read_until(rb"Stopped[\s\S]*ready> ")
    assert re.search(REGION_GIVEN_BACK, shown[shown.rindex(b"waiting") :])

    shell.type(b"fg\n")
    shell.read_until(rb"Stopped[\s\S]*" + COUNTS)
    shell.type(b"hello\n")
    shell.read_until(b"got HELLO")
    shell.read_until(rb"recorded 1 process[\s\S]*ready> ")
    shell.type(b"echo code $?.; exit\n")
    shell.read_until(rb"code 0\.")
