"""Time of each hook in a real engine on the CPU, without the calls it wraps.

    python bench/hook_time.py [CONNECTOR [BATCHES]]     # a connector as in bench/throughput.py, or "": none

`bench/throughput.py`'s engine, in which every hook is timed, and within it the call it stands around: the difference is
the hook's. Unlike a comparison of two engines this does not drown in the machine's noise; but it lacks what recording
makes others slower by, such as what it drives out of the caches. The timing itself, about 0.2 us a call, is counted as
the hooks'. The slowest of fifty calls is left out of a hook's mean: on a busy machine it was interrupted.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import throughput

WARM_UP, SHARE_KEPT = 3, 0.98
clock = time.perf_counter_ns


def timing(wrap: Callable[..., Any], spent_ns: dict[str, list[int]]) -> Callable[..., Any]:
    """`kvtrace.probes.hooks.wrap`, whose wrappers note in `spent_ns` what each call took beside the original."""

    def timed_wrap(original: Callable[..., Any], hook: Any, report: Any) -> Callable[..., Any]:
        inside_ns = 0

        @functools.wraps(original)
        def inner(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside_ns
            start = clock()
            try:
                return original(*args, **kwargs)
            finally:
                inside_ns += clock() - start

        guarded = wrap(inner, hook, report)

        @functools.wraps(original)
        def outer(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside_ns
            around_ns, inside_ns = inside_ns, 0  # it may be called from within itself
            start = clock()
            try:
                return guarded(*args, **kwargs)
            finally:
                spent_ns[hook.target].append(clock() - start - inside_ns)
                inside_ns = around_ns

        return outer

    return timed_wrap


def mean_ns(calls: list[int]) -> float:
    kept = sorted(calls)[: max(1, round(len(calls) * SHARE_KEPT))]
    return statistics.mean(kept)


def main(connector: str = "", batches: int = 30) -> None:
    throughput.prepare(connector)
    from kvtrace.format.layout import RUN_DIR_VARIABLE
    from kvtrace.probes import hooks, plugin

    spent_ns: dict[str, list[int]] = defaultdict(list)
    hooks.wrap = timing(hooks.wrap, spent_ns)
    with tempfile.TemporaryDirectory() as run_dir:
        os.environ[RUN_DIR_VARIABLE] = run_dir
        plugin.load()
        batch = throughput.engine(connector)
        for _ in range(WARM_UP):
            batch()
        spent_ns.clear()
        start = time.perf_counter_ns()
        tokens = sum(batch() for _ in range(batches))
        elapsed_ns = time.perf_counter_ns() - start
    steps = len(spent_ns["vllm.v1.core.sched.scheduler:Scheduler.schedule"])
    totals = {target: mean_ns(calls) * len(calls) for target, calls in spent_ns.items()}
    print(f"{'us a step':>9} {'calls':>7} {'us each':>8}")
    for target, total_ns in sorted(totals.items(), key=lambda item: -item[1]):
        calls = len(spent_ns[target])
        print(f"{total_ns / steps / 1e3:9.1f} {calls / steps:7.2f} {total_ns / calls / 1e3:8.2f}  {target}")
    hooks_ns = sum(totals.values())
    of_a_step = f"hooks {hooks_ns / steps / 1e3:.1f} of {elapsed_ns / steps / 1e3:,.0f} us a step"
    print(f"{steps} steps, {tokens} tokens; {of_a_step}: {1 - hooks_ns / elapsed_ns:.4f} of the speed without them")


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((str, int), sys.argv[1:], strict=False)))
