"""Arrival times of jobs."""

from __future__ import annotations

from collections.abc import Sequence

from kvtrace.errors import KvtraceError
from kvtrace.lab.workloads.model import Job, randomness

KINDS = ("all", "batch", "poisson", "closed", "recorded")


def arrivals(
    jobs: Sequence[Job], kind: str, seed: int, rate: float | None, concurrency: int | None, speed: float
) -> tuple[list[float] | None, int | None]:
    """Arrival times in s from the start, and the most jobs at a time; of each, None if there is none.

    Args:
        jobs: In order of arrival.
        kind: One of `KINDS`.
        seed: Of the gaps of `poisson`.
        rate: Jobs a second, for `poisson`.
        concurrency: Jobs at a time, for `closed`.
        speed: How much faster than recorded, for `recorded`.

    Raises:
        KvtraceError: No such kind, or it needs what was not given.
    """
    if kind in ("all", "batch"):
        return [0.0] * len(jobs), None
    if kind == "poisson":
        if not rate or rate <= 0:
            raise KvtraceError(f"arrival poisson needs rate, in jobs a second; found {rate!r}")
        rng, now, times = randomness(seed, "arrivals"), 0.0, []
        for _ in jobs:
            times.append(now)
            now += rng.expovariate(rate)
        return times, None
    if kind == "closed":
        if not concurrency or concurrency < 1:
            raise KvtraceError(f"arrival closed needs concurrency, the jobs at a time; found {concurrency!r}")
        return None, concurrency
    if kind == "recorded":
        times = [job.recorded_s for job in jobs if job.recorded_s is not None]
        if len(times) < len(jobs):
            raise KvtraceError("arrival recorded needs a workload with recorded times, such as mooncake or bailian")
        first = min(times, default=0.0)
        return [(time - first) / speed for time in times], None
    raise KvtraceError(f"no arrival {kind!r}; there are {', '.join(KINDS)}")
