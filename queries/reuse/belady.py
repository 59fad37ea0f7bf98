"""Belady's bound: the most hits any cache of a size could have had, knowing the future.

Between two events a cache retains at most so many blocks, and may choose them freely. Retaining a block from one
reference to the next is worth a hit if the next one is a lookup. Of the blocks worth retaining, the one whose lookup is
furthest away is given up; that is optimal for blocks of one size.

It holds for prefix caches as it is, where a block is of use only if all blocks before it in the prompt were found too:
whoever looks up a block looks up those before it in the same event, so their next lookup is never later. With ties
broken from the tail of the prompt, a block is given up only after all that follow it, and what is retained is whole
prefixes. So the bound of independent blocks and that of prefixes are the same number.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from kvtrace.queries.reuse.distance import COLD, Ints, References


@dataclass(frozen=True)
class Retentions:
    """What is worth retaining: groups of blocks from an event to the event of their next lookup.

    Blocks of a prompt that were referenced together and are looked up together next make one group, so that a chain of
    thousands of blocks costs as much as one block.

    Args:
        begin: int64 [G], the event of the reference, ascending.
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
        return cls(begin[first], end[first], np.diff(first, append=len(begin)))

    def hits(self, size_blocks: int) -> int:
        """The most lookups that a cache of `size_blocks` can find."""
        furthest: list[tuple[int, int]] = []  # (-end, blocks): also past ones, which never come to the top again
        ending: dict[int, int] = {}
        due: list[int] = []  # events in `ending`, nearest first
        retained = given_up = 0
        now = COLD
        for begin, end, blocks in zip(self.begin.tolist(), self.end.tolist(), self.blocks.tolist(), strict=True):
            if begin != now:
                given_up_now = _give_up(furthest, ending, retained - size_blocks)
                given_up += given_up_now
                retained -= given_up_now
                now = begin
                while due and due[0] <= now:
                    retained -= ending.pop(heapq.heappop(due))
            if end not in ending:
                ending[end] = 0
                heapq.heappush(due, end)
            ending[end] += blocks
            heapq.heappush(furthest, (-end, blocks))
            retained += blocks
        given_up += _give_up(furthest, ending, retained - size_blocks)
        return int(self.blocks.sum()) - given_up

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


def _give_up(furthest: list[tuple[int, int]], ending: dict[int, int], excess: int) -> int:
    """Give up `excess` blocks, those needed last first; how many were."""
    given_up = 0
    while given_up < excess:
        end, blocks = heapq.heappop(furthest)
        rest = blocks - (excess - given_up)
        if rest > 0:
            heapq.heappush(furthest, (end, rest))
        gone = min(blocks, blocks - rest)
        ending[-end] -= gone
        given_up += gone
    return given_up
