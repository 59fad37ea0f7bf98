"""Finds recorded processes that outlive the command."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvtrace.format import machine
from kvtrace.format.reader import ProcessRecording

_CLOCK_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def still_running(processes: Iterable[ProcessRecording], patience_s: float) -> list[ProcessRecording]:
    """Those of the recorded processes on this machine that are alive, after giving them `patience_s` to end.

    vLLM's workers may need a moment longer than the process that started them.
    """
    deadline = time.monotonic() + patience_s
    return [process for process in processes if is_alive(process.facts) and not _ends_before(process.pid, deadline)]


def is_here(facts: dict[str, Any]) -> bool:
    """Return whether a journal's `process` line is of a process that ran on this machine since it booted.

    One in a container is not here even if it has the host's name, as its pid means another process here.
    """
    here, namespace = (socket.gethostname(), machine.boot_id()), machine.pid_namespace()
    same = (facts.get("host"), facts.get("boot_id")) == here and machine.UNKNOWN not in here
    return same and facts.get("pid_namespace", namespace) == namespace


def is_alive(facts: dict[str, Any]) -> bool:
    """Return whether the recorded process, not another one that got its pid since, is here and not a zombie."""
    recorded_ns = facts.get("monotonic_ns")
    if not is_here(facts) or not isinstance(recorded_ns, int):
        return False
    try:
        fields = Path(f"/proc/{facts['pid']}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    state, start_ns = fields[0], int(fields[19]) * _CLOCK_TICK_NS
    slept_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return state not in "ZX" and start_ns <= recorded_ns + slept_ns + _CLOCK_TICK_NS


def _ends_before(pid: int, deadline: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    try:
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        return bool(ended.poll(max(0.0, deadline - time.monotonic()) * 1000))
    finally:
        os.close(descriptor)
