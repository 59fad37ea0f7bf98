"""Ways in which requests arrive when times are not the recorded ones, and which of them a recording's clients had."""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from kvtrace.lab.replay.recording import RecordedRequest, Recording

_NEVER = 1 << 62
_PAUSE_NS = 500_000_000
"""A benchmark that follows another one has to start; a client that waits is back within milliseconds."""
_FEWEST_GAPS = 8
_NEARLY_ALL = 0.9
_RIGHT_AFTER = 0.1
"""Part of a request's time. With random arrivals, gaps are as much only with hundreds of requests at a time."""
_IRREGULAR = 0.3
"""Standard deviation over mean of the times between arrivals."""


@dataclass
class Loop:
    """How requests arrive when times are not the recorded ones.

    Attributes:
        kind: `open`: at their recorded times. `closed`: a session's next turn comes its recorded gap after the last
            one ended. `concurrency`: as many requests at a time as in the recording; the next one comes its recorded
            gap after any one ended. `batch`: a batch comes its recorded gap after all requests before it ended.
        rate: Factor on the arrival rate, or on the requests at a time; gaps after ends stay.
    """

    kind: str = "open"
    rate: float = 1.0


def loop_of(recording: Recording) -> str:
    """The way of arriving that fits: offline batches, turns or clients that wait for each other's ends, or open."""
    batches = batches_of(recording)
    if len(recording.requests) > 1 and len(batches) * 2 <= len(recording.requests):
        tail = max((batch.at_once for batch in batches), default=0)
        ends = [max(r.finished_ns or 0 for r in batch.requests) for batch in batches]
        starts = [min(r.queued_ns for r in batch.requests) for batch in batches]
        apart = all(start >= end for start, end in zip(starts[1:], ends, strict=False))
        if tail > 1 and apart and all(_at_once(batch.requests) for batch in batches):
            return "batch"
    follows = predecessors(recording)
    if len(follows) * 3 >= len(recording.requests):
        return "closed"
    waited = sum(len(group.requests) for group in clients_of(recording) if _wait_for_each_other(group))
    return "concurrency" if waited and waited >= _NEARLY_ALL * len(recording.requests) else "open"


class Group(NamedTuple):
    """Requests that come when all before them have ended: an offline batch, or the requests of a benchmark's clients.

    Attributes:
        requests: In the order of arrival.
        at_once: The most requests at a time.
        gaps_ns: How long after an end each request came from the one of number `at_once` on; the first end gives its
            place to the first of them, and so on.
        after_ns: How long after the last end of all before them the first one came.
    """

    requests: list[RecordedRequest]
    at_once: int
    gaps_ns: list[int]
    after_ns: int


def clients_of(recording: Recording) -> list[Group]:
    """The recorded requests, as if each but the first ones had waited for a place among those at a time.

    There are others at a time behind a pause in which there was no request.
    """
    requests = sorted(recording.requests, key=_arrival)
    if recording.places is not None:
        left = iter(requests)
        drawn = [
            Group([*itertools.islice(left, count)], at_once, gaps_ns, after_ns)
            for count, at_once, gaps_ns, after_ns in recording.places
        ]
        drawn[-1].requests.extend(left)  # jobs of several requests may be drawn more often than others
        return drawn
    found: list[Group] = []
    busy_until = begun = 0
    for place, request in enumerate(requests):
        if place and request.arrival_ns - busy_until > _PAUSE_NS:
            found.append(_clients(requests[begun:place], found))
            begun = place
        busy_until = max(busy_until, request.finished_ns or _NEVER)
    return [*found, _clients(requests[begun:], found)]


def _clients(requests: list[RecordedRequest], before: list[Group]) -> Group:
    ends = sorted(r.finished_ns or _NEVER for r in requests)
    at_once = max(place + 1 - bisect.bisect_right(ends, r.arrival_ns) for place, r in enumerate(requests))
    gaps = [r.arrival_ns - end for r, end in zip(requests[at_once:], ends, strict=False)]
    return Group(requests, at_once, gaps, _after_ns(requests, before))


def _after_ns(requests: list[RecordedRequest], before: list[Group]) -> int:
    """From the end of the group before to the first arrival; one that never ended counts from its arrival."""
    if not before:
        return 0
    last_ns = max(r.finished_ns or before[-1].requests[0].arrival_ns for r in before[-1].requests)
    return requests[0].arrival_ns - last_ns


def _arrival(request: RecordedRequest) -> tuple[int, int]:
    return request.arrival_ns, request.number


def _wait_for_each_other(clients: Group) -> bool:
    """Nearly every request came right after one had ended, and as many were there all along.

    Arrivals at a constant rate can keep as many requests there by chance: their gaps are as long as it takes until one
    ends, and they are regular, which ends are not.
    """
    gaps = sorted(clients.gaps_ns)
    if len(gaps) < max(_FEWEST_GAPS, clients.at_once):
        return False
    long = gaps[int(_NEARLY_ALL * (len(gaps) - 1))]
    lasted = sorted(r.finished_ns - r.arrival_ns for r in clients.requests if r.finished_ns is not None)
    if long > _RIGHT_AFTER * lasted[len(lasted) // 2]:
        return False
    came = [r.arrival_ns for r in clients.requests[clients.at_once - 1 :]]
    apart = [after - before for before, after in itertools.pairwise(came)]
    mean = statistics.fmean(apart)
    return long < mean / 4 or statistics.pstdev(apart) > _IRREGULAR * mean


def _at_once(batch: list[RecordedRequest]) -> bool:
    """All requests of a batch were queued before any of them ended."""
    return max(r.queued_ns for r in batch) <= min(r.finished_ns or _NEVER for r in batch)


def batches_of(recording: Recording) -> list[Group]:
    """Requests in groups, each of which was queued after all requests before it had ended."""
    batches: list[list[RecordedRequest]] = []
    busy_until = 0
    for request in recording.requests:
        if not batches or request.queued_ns >= busy_until:
            batches.append([])
        batches[-1].append(request)
        busy_until = max(busy_until, request.finished_ns or _NEVER)
    found: list[Group] = []
    for batch in batches:
        batch.sort(key=_arrival)
        found.append(Group(batch, len(batch), [], max(_after_ns(batch, found), 0)))
    return found


def predecessors(recording: Recording) -> dict[int, RecordedRequest]:
    """The request whose end each later turn of a session waited for, by the later one's number."""
    sessions: dict[str, list[RecordedRequest]] = defaultdict(list)
    for request in recording.requests:
        if request.session is not None:
            sessions[request.session].append(request)
    found = {}
    for turns in sessions.values():
        turns.sort(key=lambda r: (r.turn if r.turn is not None else -1, r.queued_ns))
        for before, after in itertools.pairwise(turns):
            again = None not in (before.turn, after.turn) and before.turn == after.turn  # the same turn, once more
            if not again and before.finished_ns is not None and before.finished_ns <= after.arrival_ns:
                found[after.number] = before
    return found
