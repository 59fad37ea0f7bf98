"""A block pool that behaves as vLLM's does and notes what it did, for the simulation."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable

Note = Callable[[str, int, int, int | None, int | None], None]
"""op, block_id, ref_count, request, block_hash."""


def content_hash(session: int, position: int, shared_blocks: int) -> int:
    """64 bits for the block at `position` of a session's text; the first `shared_blocks` are every session's."""
    owner = "all" if position < shared_blocks else str(session)
    return int.from_bytes(hashlib.sha256(f"{owner}/{position}".encode()).digest()[:8], "little") | 1


class BlockPool:
    """Blocks 1 to `blocks`: reference counted, reused in order of release, findable by hash until reused."""

    def __init__(self, blocks: int, note: Note) -> None:
        self.note = note
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, blocks + 1))
        self.references = dict.fromkeys(range(1, blocks + 1), 0)
        self.hash_of: dict[int, int] = {}
        self.block_of: dict[int, int] = {}
        self.evictions = 0

    def allocate(self, count: int, request: int) -> list[int]:
        """Take `count` blocks from the head of the free queue; the caller checked that they are there."""
        taken = [self.free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            old = self.hash_of.pop(block, None)
            if old is not None:
                del self.block_of[old]
                self.evictions += 1
                self.note("evict", block, 0, None, old)
            self.references[block] = 1
            self.note("allocate", block, 1, request, None)
        return taken

    def find(self, hashes: list[int]) -> list[int]:
        """The longest prefix of `hashes` that is cached."""
        found = []
        for value in hashes:
            if value not in self.block_of:
                break
            found.append(self.block_of[value])
        return found

    def touch(self, blocks: list[int], request: int) -> None:
        """Take another reference on cached blocks."""
        for block in blocks:
            self.free.pop(block, None)
            self.references[block] += 1
            self.note("hit", block, self.references[block], request, None)

    def cache(self, block: int, value: int, request: int) -> None:
        """Make a full block findable, unless another one already is under that hash."""
        if block in self.hash_of or value in self.block_of:
            return
        self.hash_of[block] = value
        self.block_of[value] = block
        self.note("cache", block, self.references[block], request, value)

    def release(self, blocks: list[int], request: int) -> None:
        """Give references back, tail first, so that a prefix outlives what follows it."""
        for block in reversed(blocks):
            self.references[block] -= 1
            self.note("free", block, self.references[block], request, None)
            if self.references[block] == 0:
                self.free[block] = None
