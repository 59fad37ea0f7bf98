"""Counts of what processors and GPU did during a batch: they tell why two equal batches took differently long.

Equal batches are equal work for a thread that sleeps when it waits, such as the one that runs the batch and reads what
the engine says: where it is on a processor for longer, the processor is slower, or shared with another. A thread that
is ready and waits for a processor says that this machine has too much to do, and stolen time that the machine has that
this one runs on. The engine's own thread may wait for the GPU on a processor: the time that it was on one says less.

A GPU at its power limit lowers its clocks until it keeps to it. What takes more energy then takes more time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

PROC = Path("/proc")
_LEAST_MS = 20.0
_MS_PER_TICK = 1e3 / os.sysconf("SC_CLK_TCK")


class Meanwhile:
    """Counts from now on: Linux' of this process's and its children's threads and of the machine, NVML's of the GPU."""

    def __init__(self) -> None:
        self._machine = _machine()
        self._threads = dict(_threads())

    def told(self) -> dict[str, Any]:
        """Return the counts since then, JSON-ready.

        - `threads`: by name, ms on a processor and ms that it was ready and waited for one (None where the kernel does
          not count that). A process's first thread has the process's name, another `PROCESS/THREAD`. Those of equal
          names are told together, those with less than 20 ms or that have ended are not.
        - `busy_ms`, `stolen_ms`: of all processors together: at work, and taken by the host of a virtual machine.
        - `written_mb`: to disks.
        - `energy_j`, `power_capped_ms`, `too_hot_ms`: of the GPU: what it took, and how long its clocks were lower for
          its power limit, and for its temperature.

        Counts that the system does not have are left out.
        """
        now = _machine()
        spent: dict[str, Times] = {}
        for (name, number), times in _threads():
            spent[name] = spent.get(name, Times(0.0, 0.0)).plus(times).less(self._threads.get((name, number)))
        return {
            "threads": {name: times.rounded() for name, times in spent.items() if times.ran_ms >= _LEAST_MS},
            **{name: round(now[name] - value, 1) for name, value in self._machine.items()},
        }


class Times(NamedTuple):
    """Of a thread, ms: on a processor, and ready but waiting for one."""

    ran_ms: float
    waited_ms: float | None

    def plus(self, other: Times, sign: int = 1) -> Times:
        known = self.waited_ms is not None and other.waited_ms is not None
        waited_ms = self.waited_ms + sign * other.waited_ms if known else None
        return Times(self.ran_ms + sign * other.ran_ms, waited_ms)

    def less(self, before: Times | None) -> Times:
        return self if before is None else self.plus(before, -1)

    def rounded(self) -> list[float | None]:
        return [None if value is None else round(value, 1) for value in self]


def _threads() -> Iterator[tuple[tuple[str, int], Times]]:
    root = psutil.Process()
    for process in (root, *root.children(recursive=True)):
        with suppress(OSError):  # it has ended
            for task in (PROC / str(process.pid) / "task").iterdir():
                with suppress(OSError):
                    name = (task.parent / str(process.pid) / "comm").read_text().strip()
                    if task.name != str(process.pid):
                        name += "/" + (task / "comm").read_text().strip()
                    yield (name, int(task.name)), _times(task)


def _times(task: Path) -> Times:
    with suppress(OSError):
        ran_ns, waited_ns, _ = map(int, (task / "schedstat").read_text().split())
        return Times(ran_ns / 1e6, waited_ns / 1e6)
    fields = (task / "stat").read_text().rpartition(")")[2].split()
    return Times((int(fields[11]) + int(fields[12])) * _MS_PER_TICK, None)


def _machine() -> dict[str, float]:
    """Counts since the machine started."""
    found = {}
    with suppress(OSError):
        ticks = [int(each) for each in (PROC / "stat").read_text().split("\n")[0].split()[1:9]]
        user, nice, system, _, _, irq, softirq, stolen = ticks
        found["busy_ms"] = (user + nice + system + irq + softirq) * _MS_PER_TICK
        found["stolen_ms"] = stolen * _MS_PER_TICK
    with suppress(OSError):
        counts = dict(line.split() for line in (PROC / "vmstat").read_text().splitlines())
        found["written_mb"] = int(counts["pgpgout"]) / 1e3
    return found | _gpu()


def _gpu() -> dict[str, float]:
    """Counts of the first GPU that this process sees, since its driver was loaded. None without NVML."""
    try:
        from vllm.third_party import pynvml as nvml

        nvml.nvmlInit()
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        device = nvml.nvmlDeviceGetHandleByIndex(int(first))
    except Exception:  # no vLLM, no driver, no GPU, or one that is named otherwise
        return {}
    found = {}
    with suppress(nvml.NVMLError):
        found["energy_j"] = nvml.nvmlDeviceGetTotalEnergyConsumption(device) / 1e3
    for name, policy in (
        ("power_capped_ms", nvml.NVML_PERF_POLICY_POWER),
        ("too_hot_ms", nvml.NVML_PERF_POLICY_THERMAL),
    ):
        with suppress(nvml.NVMLError):
            found[name] = nvml.nvmlDeviceGetViolationStatus(device, policy).violationTime / 1e6
    return found
