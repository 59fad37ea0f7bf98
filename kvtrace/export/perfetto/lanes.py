"""Puts what overlaps side by side: slices on one track of Perfetto's must not overlap."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from kvtrace.export.perfetto.wire import Ints

FOREVER = np.iinfo(np.int64).max
"""The end of what had not ended when the recording did."""


@dataclass
class _Track:
    """Lanes of one track: which are free, and until when the others are taken."""

    free: list[int] = field(default_factory=list)
    taken: list[tuple[int, int]] = field(default_factory=list)

    def take(self, start_ns: int, end_ns: int, gap_ns: int) -> int:
        while self.taken and self.taken[0][0] + gap_ns <= start_ns:
            heapq.heappush(self.free, heapq.heappop(self.taken)[1])
        lane = heapq.heappop(self.free) if self.free else len(self.taken)
        heapq.heappush(self.taken, (end_ns, lane))
        return lane


class Lanes:
    """The lowest free lane for each interval. Remembers from batch to batch.

    Args:
        gap_ns: Least time between two intervals of a lane.
    """

    def __init__(self, gap_ns: int) -> None:
        self._gap_ns = gap_ns
        self._tracks: dict[Hashable, _Track] = defaultdict(_Track)

    def assign(self, track: Hashable, start_ns: Ints, end_ns: Ints) -> Ints:
        """The lanes of a track's next intervals, which come in the order of their starts."""
        state = self._tracks[track]
        latest = np.maximum.accumulate(end_ns)
        if not self._overlap(state, start_ns, latest):
            state.free, state.taken = sorted({*state.free, *(lane for _, lane in state.taken)} - {0}), []
            heapq.heappush(state.taken, (int(latest[-1]), 0))
            return np.zeros(len(start_ns), np.int64)
        spans = zip(start_ns.tolist(), end_ns.tolist(), strict=True)
        return np.array([state.take(start, end, self._gap_ns) for start, end in spans], np.int64)

    def _overlap(self, state: _Track, start_ns: Ints, latest: Ints) -> bool:
        taken = max((end for end, _ in state.taken), default=None)
        if taken is not None and taken > start_ns[0] - self._gap_ns:
            return True
        return bool((latest[:-1] > start_ns[1:] - self._gap_ns).any())
