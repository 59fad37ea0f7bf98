"""Sums and percentiles over the last seconds, in memory of a fixed size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

SECOND_NS = 1_000_000_000
WINDOW_S = 60
"""Span of every rate and percentile of the live views."""

_KEPT_S = WINDOW_S + 4
_BUCKETS_A_DECADE = 32
_LOWEST_NS = 10_000
_DECADES = 9
BUCKETS_NS = _LOWEST_NS * 10 ** (np.arange(_BUCKETS_A_DECADE * _DECADES) / _BUCKETS_A_DECADE)
"""Upper bounds of the percentiles' buckets, 7.5% apart: from 10 us to 2.6 hours."""

EXPORTED_NS = np.array([step * 10**decade for decade in range(6, 12) for step in (1, 2, 5)], np.int64)
"""Upper bounds of the exported histograms' buckets: 1 ms to 500 s."""


def table(places: int, dtype: Any) -> NDArray[Any]:
    """A table of zeros whose memory is all taken at once, so that it does not seem to grow as it fills."""
    rows: NDArray[Any] = np.empty(places, dtype)
    rows[:] = np.zeros((), dtype)
    return rows


class SecondSums:
    """Sums by second and column over the last minute.

    Args:
        columns: How many sums are kept.
    """

    def __init__(self, columns: int) -> None:
        self._second = np.full(_KEPT_S, -1, np.int64)
        self._sums = np.zeros((_KEPT_S, columns), np.int64)

    def add(self, time_ns: Any, column: Any, amount: Any) -> None:
        """Add amounts at some times; times, columns and amounts are arrays of one length, or single numbers."""
        time_ns, column, amount = np.broadcast_arrays(np.atleast_1d(time_ns), column, amount)
        if not len(time_ns):
            return
        second = time_ns // SECOND_NS
        for each in np.unique(second)[-_KEPT_S:]:
            place = each % _KEPT_S
            if self._second[place] < each:
                self._second[place] = each
                self._sums[place] = 0
        place = second % _KEPT_S
        current = self._second[place] == second
        np.add.at(self._sums, (place[current], column[current]), amount[current])

    def total(self, now_ns: int) -> Ints:
        """The sum of each column over the window that ends at `now_ns`."""
        now = now_ns // SECOND_NS
        inside = (self._second > now - WINDOW_S) & (self._second <= now)
        total: Ints = self._sums[inside].sum(axis=0)
        return total


class Durations:
    """Durations: percentiles over the window, and a histogram since the beginning.

    Attributes:
        counts: Durations by bucket of `EXPORTED_NS`, and those above the last.
        sum_ns: Their sum.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(len(EXPORTED_NS) + 1, np.int64)
        self.sum_ns = 0
        self._recent = SecondSums(len(BUCKETS_NS) + 1)

    def add(self, time_ns: Any, duration_ns: Any) -> None:
        """Add durations that ended at some times."""
        duration_ns = np.maximum(np.atleast_1d(duration_ns), 0)
        self.sum_ns += int(duration_ns.sum())
        self.counts += np.bincount(np.searchsorted(EXPORTED_NS, duration_ns), minlength=len(self.counts))
        self._recent.add(time_ns, np.searchsorted(BUCKETS_NS, duration_ns), 1)

    def recent(self, now_ns: int) -> Ints:
        """Durations by bucket of `BUCKETS_NS` over the window."""
        return self._recent.total(now_ns)


def percentile_ns(counts: Ints, share: float) -> float | None:
    """A percentile of durations counted by `BUCKETS_NS`, to 4%; None without any."""
    total = int(counts.sum())
    if not total:
        return None
    bucket = int(np.searchsorted(np.cumsum(counts), share * total))
    upper = BUCKETS_NS[min(bucket, len(BUCKETS_NS) - 1)]
    return float(upper * 10 ** (-0.5 / _BUCKETS_A_DECADE))
