"""Signals to the command, to kvtrace and to both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvtrace.format.reader import open_recording
from tests.record.processes import Engine, Output, Script, Start, is_readable

Tells = Callable[[], "tuple[subprocess.Popen[bytes], Output]"]

TELLS = """
    import os, signal, sys

    def tell(number, frame):
        os.write(1, f"<{signal.Signals(number).name}>".encode())

    for number in (1, 2, 3, 10, 12, 15, 18):
        signal.signal(number, tell)
    os.write(1, f"pid {os.getpid()}.".encode())
    os.write(1, b"end" + sys.stdin.read().encode())
"""
TOLD = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCONT]


@pytest.fixture
def tells(start: Start, script: Script) -> None:
    """A command under kvtrace that says which signals it gets and ends with its stdin."""

    def run() -> tuple[subprocess.Popen[bytes], Output]:
        process = start("--no-preflight", "-o", "run", sys.executable, script(TELLS))
        said = Output(process.stdout.fileno())
        said.read_until(rb"pid \d+\.")
        wait_for_witness(process.pid)
        return process, said

    return run


def wait_for_witness(pid: int) -> int:
    """Give the witness's pid: kvtrace starts it right after the command, so the command may speak first."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text() == "cat\n":
                return int(child)
        time.sleep(0.005)
    raise AssertionError("kvtrace has no witness")


def end(process: subprocess.Popen[bytes], output: Output) -> bytes:
    process.stdin.close()
    said = output.read_until(b"end")
    assert process.wait() == 0
    return said.partition(b".")[2]


@pytest.mark.parametrize("number", TOLD, ids=lambda number: number.name)
def test_a_signal_to_kvtrace_reaches_the_command_once(tells: Tells, number: signal.Signals) -> None:
    process, said = tells()
    process.send_signal(number)
    said.read_until(f"<{number.name}>".encode())
    process.send_signal(signal.SIGUSR2)
    said.read_until(b"<SIGUSR2>")

    assert end(process, said) == f"<{number.name}><SIGUSR2>end".encode()


@pytest.mark.parametrize("number", TOLD, ids=lambda number: number.name)
def test_a_signal_to_the_whole_group_reaches_the_command_once(tells: Tells, number: signal.Signals) -> None:
    process, said = tells()
    for _ in range(2):
        said.data = b"."
        os.killpg(process.pid, number)
        said.read_until(f"<{number.name}>".encode())
        process.send_signal(signal.SIGUSR2)  # handled after the first one, so that has been dealt with
        said.read_until(b"<SIGUSR2>")
        assert said.data == f".<{number.name}><SIGUSR2>".encode()

    end(process, said)


def test_a_signal_to_kvtrace_and_then_to_the_group_reaches_the_command_once(tells: Tells) -> None:
    """So does `timeout`."""
    process, said = tells()
    process.send_signal(signal.SIGINT)
    os.killpg(process.pid, signal.SIGINT)
    said.read_until(b"<SIGINT>")
    process.send_signal(signal.SIGUSR2)
    said.read_until(b"<SIGUSR2>")

    assert end(process, said) == b"<SIGINT><SIGUSR2>end"


def test_a_signal_to_the_command_alone_is_not_repeated(tells: Tells) -> None:
    process, said = tells()
    pid = int(said.data.partition(b"pid ")[2].partition(b".")[0])
    os.kill(pid, signal.SIGTERM)
    said.read_until(b"<SIGTERM>")

    assert end(process, said) == b"<SIGTERM>end"


def test_kvtrace_ends_as_the_command_ends_by_a_forwarded_signal(start: Start) -> None:
    process = start("-o", "run", "sh", "-c", "echo ready; exec sleep 600")
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)

    assert process.wait() == -signal.SIGTERM


def test_the_witness_ends_with_kvtrace(start: Start) -> None:
    process = start("-o", "run", "sh", "-c", "echo ready; read line")
    process.stdout.readline()
    descriptor = os.pidfd_open(wait_for_witness(process.pid))
    process.kill()
    ended = is_readable(descriptor, 30)
    os.close(descriptor)
    assert ended


def test_killing_kvtrace_leaves_the_command_running_and_its_recording_whole(
    start: Start, engine: Engine, tmp_path: Path
) -> None:
    source = "step(5); print('ready', flush=True); sys.stdin.readline(); step(6); print('done')"
    process = start("-o", "run", *engine(source))
    process.stdout.readline()
    process.kill()
    process.wait()
    process.stdin.write(b"go on\n")

    assert process.stdout.read() == b"done\n"
    (recorded,) = open_recording(tmp_path / "run").processes
    assert [segment.count() for segment in recorded.segments()["step_schedule"]] == [(11, 0)]
    facts = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert not {"ended_ns", "exit_code"} & facts.keys()


def test_a_process_that_outlives_the_command_is_named(start: Start, engine: Engine) -> None:
    source = """
        worker_is_ready = os.pipe()
        step(1)
        if os.fork() == 0:
            recorder.note("role", role="worker")
            step(1)
            os.write(1, f"worker {os.getpid()}.".encode())
            os.close(1); os.close(2)
            os.write(worker_is_ready[1], b"x")
            sys.stdin.read()
            os._exit(0)
        os.read(worker_is_ready[0], 1)
    """
    process = start("-o", "run", *engine(source))
    worker = Output(process.stdout.fileno()).read_until(rb"worker \d+\.").partition(b"worker ")[2].rstrip(b".")
    summary = process.stderr.read()
    process.stdin.close()

    assert process.wait() == 0
    assert b"process " + worker + b" (worker) outlived the command" in summary
