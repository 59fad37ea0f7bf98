"""Belady's bound: the most hits any cache of a size could have had, knowing the future.

Between two events a cache retains at most so many blocks, and may choose them freely. Retaining a block from one
reference to the next is worth a hit if the next one is a lookup. Of the blocks worth retaining, the one whose lookup is
furthest away is evicted; that is optimal for blocks of one size.

It holds for prefix caches as it is, where a block is of use only if all blocks before it in the prompt were found too:
whoever looks up a block looks up those before it in the same event, so their next lookup is never later. With ties
broken from the tail of the prompt, a block is evicted only after all that follow it, and what is retained is whole
prefixes. So the bound of independent blocks and that of prefixes are the same number.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from kvtrace.queries.reuse.distance import COLD, Ints, References


@dataclass(frozen=True)
class Retentions:
    """Retentions that save misses: groups of blocks from an event to the event of their next lookup.

    Blocks of a prompt that were referenced together and are looked up together next make one group, so that a chain of
    thousands of blocks costs as much as one block.

    Args:
        begin: int64 [G], ascending: the event of the reference, counting only events where a retention begins or ends.
        end: int64 [G], the event of the lookup.
        blocks: int64 [G].
    """

    begin: Ints
    end: Ints
    blocks: Ints

    @classmethod
    def of(cls, references: References) -> Retentions:
        """The retentions between the references."""
        worth = np.flatnonzero(references.counted & (references.previous != COLD))
        begin, end = references.event[references.previous[worth]], references.event[worth]
        order = np.lexsort((end, begin))
        begin, end = begin[order], end[order]
        first = np.flatnonzero((np.diff(begin, prepend=-1) != 0) | (np.diff(end, prepend=-1) != 0))
        events = np.unique(np.concatenate((begin[first], end[first])))
        begin, end = (np.searchsorted(events, moments[first]) for moments in (begin, end))
        return cls(begin, end, np.diff(first, append=len(order)))

    def hits(self, size_blocks: int) -> int:
        """The most lookups that a cache of `size_blocks` can find."""
        furthest: list[int] = []  # a heap of groups, see _entry; past ones never come to its top again
        ending = [0] * (int(self.end.max(initial=-1)) + 1)  # blocks retained until each event
        retained = given_up = now = 0
        for begin, end, blocks in zip(self.begin.tolist(), self.end.tolist(), self.blocks.tolist(), strict=True):
            if begin != now:
                excess = max(retained - size_blocks, 0)
                _give_up(furthest, ending, excess)
                given_up += excess
                retained -= excess + sum(ending[now + 1 : begin + 1])
                now = begin
            ending[end] += blocks
            heapq.heappush(furthest, _entry(end, blocks))
            retained += blocks
        return int(self.blocks.sum()) - given_up - max(retained - size_blocks, 0)

    def size_for(self, hits: float) -> int | None:
        """The smallest size in blocks that can have so many hits; None if none can."""
        if hits > self.blocks.sum():
            return None
        low, high = -1, 1
        while self.hits(high) < hits:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.hits(middle) >= hits else (middle, high)
        return high


def _entry(end: int, blocks: int) -> int:
    """A group in one number, which a heap compares faster than a tuple; the furthest end is the least."""
    return -(end << 32 | blocks)


def _give_up(furthest: list[int], ending: list[int], excess: int) -> None:
    """Give up `excess` blocks, those needed last first."""
    while excess:
        end, blocks = divmod(-heapq.heappop(furthest), 1 << 32)
        gone = min(blocks, excess)
        if gone < blocks:
            heapq.heappush(furthest, _entry(end, blocks - gone))
        ending[end] -= gone
        excess -= gone
