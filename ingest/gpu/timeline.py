"""Timeline of the step a thread works for, from the ranges it was in, for an ASOF join.

A range join of millions of launches with thousands of ranges does not end; the latest change before a launch does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kvtrace.ingest.gpu.enums import Attribution

_State = tuple[int | None, Attribution | None]


class Range(NamedTuple):
    """Time that a thread spent on a step, ns. `until_ns` is when the step was over, where that is known."""

    pid: int
    tid: int
    start_ns: int
    end_ns: int
    method: Attribution
    step: int
    until_ns: int | None = None


class Timeline(NamedTuple):
    """Work of a thread: `states[i]` from `at_ns[i]` on, as (step, method); (None, None) is for nothing known."""

    pid: int
    tid: int
    at_ns: list[int]
    states: list[_State]


def timelines(ranges: Iterable[Range]) -> list[Timeline]:
    """A timeline a thread. The innermost range counts; after the last one, what follows is its step's too."""
    by_thread: dict[tuple[int, int], list[Range]] = defaultdict(list)
    for each in ranges:
        by_thread[each.pid, each.tid].append(each)
    found = []
    for (pid, tid), of_thread in by_thread.items():
        of_thread.sort(key=lambda r: (r.start_ns, -r.end_ns))
        latest = dict(_sweep(of_thread))  # of two at one time, the later counts: one range ends as another begins
        found.append(Timeline(pid, tid, list(latest), list(latest.values())))
    return found


def _sweep(ranges: list[Range]) -> Iterator[tuple[int, _State]]:
    """Return the thread's state from each change on, in order of time."""
    entered: list[Range] = []
    for each in ranges:
        while entered and entered[-1].end_ns <= each.start_ns:
            yield from _leave(entered, each.start_ns)
        entered.append(each)
        yield each.start_ns, (each.step, each.method)
    while entered:
        yield from _leave(entered, None)


def _leave(entered: list[Range], next_ns: int | None) -> Iterator[tuple[int, _State]]:
    """Return what holds once the innermost range ends, up to `next_ns`."""
    left = entered.pop()
    while entered and entered[-1].end_ns < left.end_ns:  # ranges that do not nest
        entered.pop()
    if entered:
        yield left.end_ns, (entered[-1].step, entered[-1].method)
        return
    yield left.end_ns, (left.step, Attribution.after_range)
    over_ns = left.until_ns
    if over_ns is not None and over_ns > left.end_ns and (next_ns is None or over_ns < next_ns):
        yield over_ns, (None, None)
