"""A block pool that behaves like vLLM's, at random, and knows what the queries have to find in its events."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

Row = tuple[int, int, int, int | None, str, int, int]
"""engine_id, time_ns, step, block_id, op, ref_count, pool"""


@dataclass
class Block:
    """A block, and since when it has been in its present state."""

    id: int
    references: int = 0
    cached: bool = False
    allocated: tuple[int, int] | None = None  # when its content came: time, allocations by then
    released: tuple[int, int] = (0, 0)
    touched: tuple[int, int] = (0, 0)


@dataclass
class Pool:
    """Makes the events and steps of one engine; `reuse` and `stays` hold (time, allocations) by kind."""

    engine: int
    seed: int
    size: int = 8
    events: list[Row] = field(default_factory=list)
    steps: list[tuple[int, ...]] = field(default_factory=list)
    cached_free: list[int] = field(default_factory=list)
    reuse: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    stays: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def run(self, steps: int) -> None:
        """Live for a number of steps."""
        self.random = random.Random(self.seed)
        self.free = [Block(number) for number in range(1, self.size + 1)]
        self.used: list[Block] = []
        self.now = self.engine * 1000
        self.allocations = 0
        for self.step in range(1, steps + 1):
            for _ in range(self.random.randrange(6)):
                self._schedule()
            self._snapshot()
            for _ in range(self.random.randrange(5)):
                self._release()
            if not self.used and self.random.random() < 0.3:
                self._reset()
        end = max(row[1] for row in self.events if row[3] is not None)
        for block in (*self.free, *self.used):
            if block.allocated:
                self.stays["unended"].append((end - block.allocated[0], self.allocations - block.allocated[1]))

    def _moment(self) -> tuple[int, int]:
        return self.now, self.allocations

    def _emit(self, block: Block | None, op: str) -> None:
        references = block.references if block else 0
        self.events.append((self.engine, self.now, self.step, block.id if block else None, op, references, 0))

    def _since(self, before: tuple[int, int]) -> tuple[int, int]:
        return self.now - before[0], self.allocations - before[1]

    def _schedule(self) -> None:
        self.now += self.random.randrange(3)  # blocks changed by one call share their time
        hits = [block for block in (*self.free, *self.used) if block.cached]
        if hits and self.random.random() < 0.4:
            self._hit(self.random.choice(hits))
        elif self.free:
            self._allocate(self.free.pop(0))
        elif self.random.random() < 0.3 and any(block.cached for block in self.used):
            self._evict(next(block for block in self.used if block.cached))

    def _hit(self, block: Block) -> None:
        if block.references == 0:
            self.reuse["idle"].append(self._since(block.released))
            self.free.remove(block)
            self.used.append(block)
        else:
            self.reuse["shared"].append(self._since(block.touched))
        block.references += 1
        block.touched = self._moment()
        self._emit(block, "hit")

    def _allocate(self, block: Block) -> None:
        if block.cached:
            self._evict(block)
        elif block.allocated:
            self.stays["reallocated"].append(self._since(block.allocated))
        self.allocations += 1
        block.references, block.allocated = 1, self._moment()
        self.used.append(block)
        self._emit(block, "allocate")
        if self.random.random() < 0.7:
            block.cached, block.touched = True, self._moment()
            self._emit(block, "cache")

    def _evict(self, block: Block) -> None:
        assert block.allocated
        block.cached = False
        self.stays["evicted"].append(self._since(block.allocated))
        if block.references == 0:
            self.stays["idle_before_eviction"].append(self._since(block.released))
        block.allocated = None
        self._emit(block, "evict")

    def _release(self) -> None:
        self.now += self.random.randrange(3)
        if self.used:
            block = self.random.choice(self.used)
            block.references -= 1
            block.touched = self._moment()
            if block.references == 0:
                self.used.remove(block)
                self.free.append(block)
                block.released = self._moment()
            self._emit(block, "free")

    def _reset(self) -> None:
        self.now += 1
        for block in self.free:
            block.cached = False
        self._emit(None, "reset")

    def _snapshot(self) -> None:
        self.now += 1
        cached = sum(block.cached for block in (*self.free, *self.used))
        self.steps.append((self.engine, self.now, self.now, self.step, len(self.used), len(self.free), cached))
        self.cached_free.append(sum(block.cached for block in self.free))
        self.now += 1
