"""The hit curve of an LRU cache: how many lookups it would have found, at every size at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtrace.queries.reuse.distance import COLD, Bools, Ints

Floats = NDArray[np.float64]

ROUNDING = 1e-12
"""Ratios that are equal but for this are equal."""


@dataclass(frozen=True)
class HitCurve:
    """Hits of an LRU cache by its size. The miss ratio at a size is 1 less the hit ratio.

    Args:
        sizes: int64 [K], ascending: sizes in blocks at which the hits change.
        hits: float64 [K], lookups found by a cache of that size (and up to the next).
        lookups: All lookups, those included that nothing could have found.
    """

    sizes: Ints
    hits: Floats
    lookups: float

    @classmethod
    def of(cls, distances: Ints, counted: Bools, lookups: float) -> HitCurve:
        """The curve of LRU distances (`lru_distances`), over the references that are lookups."""
        warm = distances[counted & (distances != COLD)]
        by_distance = np.bincount(warm) if len(warm) else np.empty(0, np.int64)
        found = np.flatnonzero(by_distance)
        # A block at distance d is found by d + 1 blocks.
        return cls(found + 1, np.cumsum(by_distance[found]).astype(float), lookups)

    def hit_ratio(self, size_blocks: Any) -> Floats:
        """Share of the lookups that a cache of so many blocks finds; NaN without lookups."""
        if not self.lookups:
            return np.full(np.shape(size_blocks), math.nan)
        place = np.searchsorted(self.sizes, size_blocks, side="right")
        ratio: Floats = np.concatenate(([0.0], self.hits))[place] / self.lookups
        return ratio

    def size_for(self, hit_ratio: float) -> int | None:
        """The smallest size in blocks that reaches the hit ratio; None if none does."""
        wanted = hit_ratio * self.lookups * (1 - ROUNDING)
        if wanted <= 0:
            return 0 if self.lookups else None
        place = int(np.argmax(self.hits >= wanted)) if len(self.hits) and self.hits.max() >= wanted else -1
        return int(self.sizes[place]) if place >= 0 else None
