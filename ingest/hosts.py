"""Clocks of several hosts: what is added to each one's UNIX time so that no message arrives before it was sent.

A message from host A to B, sent at `a` and received at `b`, each by its own clock, says that B's correction is at
least `a - b` more than A's; one back bounds it from the other side, as in NTP. Chains of messages bound hosts that
never spoke.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Messages(NamedTuple):
    """Messages from one clock's host to another's: their number, and the least of received_ns - sent_ns."""

    sender: int
    receiver: int
    least_ns: int
    number: int


class Correction(NamedTuple):
    """Correction of a clock, with its uncertainty.

    `earliest_ns` and `latest_ns` are the bounds that messages leave (None: unbounded). `uncertainty_ns` is how far the
    true correction may be from `correction_ns`; None where a side has no bound. A negative width, `latest_ns` below
    `earliest_ns`, means that no constant explains all messages: the clocks drifted apart, or one was set.
    """

    correction_ns: int
    uncertainty_ns: int | None
    earliest_ns: int | None
    latest_ns: int | None
    messages: int
    method: str

    @property
    def contradiction_ns(self) -> int:
        """Return the time by which messages contradict each other; 0 if they do not."""
        if self.earliest_ns is None or self.latest_ns is None:
            return 0
        return max(0, self.earliest_ns - self.latest_ns)


def estimate(clocks: Sequence[int], messages: Iterable[Messages], given: Mapping[int, int]) -> dict[int, Correction]:
    """The correction of each clock. The first one is the reference; `given` ones are taken as they are.

    Returns:
        By clock. Between two bounds it is the middle; with one bound, or none, it is the clock's own time, moved as far
        as the bound asks for.
    """
    reference = clocks[0]
    fixed = {reference: 0, **given}
    # most[a, b]: an upper bound of a's correction less b's.
    most: dict[tuple[int, int], int] = {(a, b): fixed[a] - fixed[b] for a in fixed for b in fixed}
    counts = dict.fromkeys(clocks, 0)
    for message in messages:
        ends = message.sender, message.receiver
        if message.sender not in fixed or message.receiver not in fixed:
            most[ends] = min(most.get(ends, message.least_ns), message.least_ns)
        for clock in ends:
            counts[clock] += message.number
    for middle in clocks:
        for a in clocks:
            for b in clocks:
                if a != b and (a, middle) in most and (middle, b) in most:
                    way = most[a, middle] + most[middle, b]
                    most[a, b] = min(most.get((a, b), way), way)
    found = {}
    for clock in clocks:
        if clock in fixed:
            method = "reference" if clock == reference else "given"
            found[clock] = Correction(fixed[clock], 0, None, None, counts[clock], method)
        else:
            latest, back = most.get((clock, reference)), most.get((reference, clock))
            found[clock] = _between(None if back is None else -back, latest, counts[clock])
    return found


def _between(earliest: int | None, latest: int | None, messages: int) -> Correction:
    if earliest is not None and latest is not None:
        middle = (earliest + latest) // 2
        return Correction(middle, abs(latest - earliest + 1) // 2, earliest, latest, messages, "hand_overs")
    if earliest is None and latest is None:
        return Correction(0, None, None, None, messages, "own_clock")
    correction = max(0, earliest) if earliest is not None else min(0, latest or 0)
    return Correction(correction, None, earliest, latest, messages, "one_direction")
