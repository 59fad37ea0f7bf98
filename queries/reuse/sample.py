"""Reuse from a sample of the blocks, for traces too long to follow every block.

Blocks are sampled by a hash of their key, so that a block is followed at all of its references or at none (spatial
sampling, Waldspurger et al., FAST 2015). With a share R of the blocks, a cache of C blocks is one of C * R sampled
ones. A sample that has more or fewer lookups than its share is off by the popular blocks it caught or missed; those are
hits in any cache, so the difference is taken from, or added to, the hits at every size but 0 (their SHARDS-adj).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtrace.errors import KvtraceError
from kvtrace.queries.reuse.belady import Retentions
from kvtrace.queries.reuse.curve import Floats, HitCurve
from kvtrace.queries.reuse.distance import References, lru_distances

PARTS = 8
"""Parts that a sample is divided into to estimate its error."""

SMALLEST_BLOCKS = 32
"""The smallest cache, in sampled blocks, that a sample is asked about: smaller ones are beyond its resolution."""

_WHOLE = 1 << 32


@dataclass(frozen=True)
class Sample:
    """A share of the blocks with all their references; of `rate` 1, all blocks, and everything below is exact.

    Args:
        references: The sampled blocks' references.
        lookups: The lookups that such a share has on average.
        rate: The share.
        start: Where the share begins in the range of hashes.
    """

    references: References
    lookups: float
    rate: float = 1.0
    start: float = 0.0

    @cached_property
    def _curve(self) -> HitCurve:
        curve = HitCurve.of(lru_distances(self.references), self.references.counted, self.lookups)
        if self.rate == 1:
            return curve
        # d sampled blocks in between stand for d / rate; the adjustment holds from the first block on.
        sizes = np.concatenate(([1], np.round((curve.sizes - 1) / self.rate).astype(np.int64) + 1))
        hits = np.maximum(np.concatenate(([0.0], curve.hits)) + self._adjustment, 0.0)
        return HitCurve(sizes, hits, self.lookups)

    @cached_property
    def _retentions(self) -> Retentions:
        return Retentions.of(self.references)

    @property
    def smallest(self) -> int:
        """The smallest size in blocks that the sample can tell something about."""
        return 0 if self.rate == 1 else math.ceil(SMALLEST_BLOCKS / self.rate)

    @property
    def _adjustment(self) -> float:
        """Lookups by which the sample falls short of its share."""
        return self.lookups - self.references.lookups if self.rate < 1 else 0.0

    def lru(self, size_blocks: Any) -> Floats:
        """Hit ratio of LRU caches of these sizes."""
        return self._curve.hit_ratio(size_blocks)

    def lru_size_for(self, hit_ratio: float) -> int | None:
        """The smallest LRU cache that reaches the hit ratio, in blocks; None if none does."""
        return self._curve.size_for(hit_ratio)

    def belady(self, size_blocks: Any) -> Floats:
        """Belady's bound: hit ratio that no cache of these sizes exceeds."""
        sizes = np.atleast_1d(np.asarray(size_blocks, np.int64))
        hits = [self._retentions.hits(round(size * self.rate)) + (self._adjustment if size else 0) for size in sizes]
        return np.maximum(np.array(hits, float), 0) / self.lookups if self.lookups else np.full(len(sizes), np.nan)

    def belady_size_for(self, hit_ratio: float) -> int | None:
        """The smallest cache that could reach the hit ratio, in blocks; None if none could."""
        size = self._retentions.size_for(hit_ratio * self.lookups - self._adjustment)
        return None if size is None else round(size / self.rate)

    def parts(self) -> list[Sample]:
        """The sample in `PARTS` samples that share no block; how much they differ tells how good it is. [] if exact."""
        if self.rate == 1:
            return []
        step = self.rate / PARTS
        return [_share(self.references, self.lookups / PARTS, self.start + part * step, step) for part in range(PARTS)]


def sample(references: References, rate: float = 1.0) -> Sample:
    """Sample a share of the blocks.

    Args:
        references: All references.
        rate: The share of the blocks, above 0 and up to 1.

    Raises:
        KvtraceError: the rate is out of range.
    """
    if not 0 < rate <= 1:
        raise KvtraceError(f"a sample of {rate} of the blocks: expected a share above 0 and up to 1")
    if rate == 1:
        return Sample(references, references.lookups)
    return _share(references, references.lookups * rate, 0.0, rate)


def _share(references: References, lookups: float, start: float, rate: float) -> Sample:
    place = _mixed(references.key) >> np.uint64(32)
    low, high = round(start * _WHOLE), round((start + rate) * _WHOLE)
    kept = (place >= low) & (place < high)
    # Lookups that nobody's store preceded are not followed block by block: a sample has its share of them exactly.
    part = References(references.key[kept], references.event[kept], references.counted[kept])
    share = references.uncached_lookups * lookups / references.lookups if references.lookups else 0.0
    return Sample(replace(part, uncached_lookups=share), lookups, rate, start)


def _mixed(key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Keys scattered over all 64 bits, for imported keys may be small numbers (Steele's SplitMix64)."""
    mixed = key + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
