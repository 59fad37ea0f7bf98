"""Counts of what processors did during a batch, as the benchmarks on a GPU tell them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kvtrace.probes.device.drain_thread import show_name

CHILD = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(15, b"engine")
print("named", flush=True)
sys.stdin.readline()
while time.process_time() < 0.4:
    pass
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "bench")


def test_threads_that_work_are_told_by_name_for_as_long_as_they_did() -> None:
    """GIVEN a thread and a child's that work, and a thread that sleeps."""
    pytest.importorskip("psutil")
    from meanwhile import Meanwhile

    worked_ms: list[float] = []
    done, over = threading.Barrier(2), threading.Event()

    def work() -> None:
        show_name("at-work")
        while time.thread_time() < 0.2:
            pass
        worked_ms.append(1e3 * time.thread_time())
        done.wait()
        over.wait()

    def sleep() -> None:
        show_name("asleep")
        over.wait()

    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        meanwhile = Meanwhile()
        child.stdin.write("\n")
        child.stdin.flush()
        threads = [threading.Thread(target=each) for each in (work, sleep)]
        for thread in threads:
            thread.start()
        done.wait()
        child.stdout.readline()
        told = meanwhile.told()
        over.set()
        child.communicate("\n")
    for thread in threads:
        thread.join()
    own = Path("/proc/self/comm").read_text().strip()
    ran_ms = {name: times[0] for name, times in told["threads"].items()}
    assert worked_ms[0] - 20 <= ran_ms[f"{own}/at-work"] <= worked_ms[0] + 20  # a tick of 10 ms where nothing finer is
    assert f"{own}/asleep" not in ran_ms
    assert 200 <= ran_ms["engine"] <= 420  # it started in less than half of its 400 ms
    assert told["busy_ms"] >= worked_ms[0]
    assert told["stolen_ms"] >= 0
    assert told["written_mb"] >= 0
