"""Cost of recording a KV block to its engine: evicted and allocated, cached, freed.

    python bench/block_cost.py [ROUNDS]

The probes' own hooks on stand-ins for vLLM's block pool that do nothing, 32 blocks a call; the stand-ins' time without
hooks is taken off. Median and worst of all turns.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvtrace.capture._native import EngineState
from kvtrace.capture.recorder import Recorder
from kvtrace.probes import blocks
from kvtrace.probes.engine import Pool
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Patches

BLOCKS, CALLS, KEY = 32, 2_000, bytes(range(36))


class Block:
    """As large as vLLM's."""

    __slots__ = ("block_id", "is_null", "ref_cnt")

    def __init__(self, number: int) -> None:
        self.block_id, self.ref_cnt, self.is_null = number, 1, False


FOUND = [Block(number) for number in range(BLOCKS)]


def calls(hooked: bool, folder: Path) -> dict[str, Callable[[], None]]:
    """Timed functions, by name."""

    class HashMap:
        def insert(self, key: bytes, block: Any) -> None: ...

        def pop(self, key: bytes, block_id: int) -> Block:
            return FOUND[0]

    class BlockPool:
        cached_block_hash_to_block = HashMap()

        def get_new_blocks(self, number: int) -> list[Block]:
            return FOUND

        def free_blocks(self, ordered: list[Block]) -> None: ...

    pool, hashes = BlockPool(), BlockPool.cached_block_hash_to_block
    if hooked:
        engines, patches = Engines(Recorder(folder)), Patches(lambda *_: None)
        engine: Any = type("Engine", (EngineState,), {})()
        engines.pools[id(pool)] = Pool(engine, pool, 0)
        for hook in blocks.hooks(engines):
            owner = HashMap if hook.path[0] == "BlockHashToBlockMap" else BlockPool
            if hasattr(owner, hook.path[-1]):
                patches.patch(owner, hook.path[-1], hook)

    def evict_and_allocate() -> None:
        for block in FOUND:
            hashes.pop(KEY, block.block_id)
        pool.get_new_blocks(BLOCKS)

    def cache() -> None:
        for block in FOUND:
            hashes.insert(KEY, block)

    return {"evict and allocate": evict_and_allocate, "cache": cache, "free": lambda: pool.free_blocks(FOUND)}


def ns_a_block(function: Callable[[], None]) -> float:
    start = time.thread_time_ns()
    for _ in range(CALLS):
        function()
    return (time.thread_time_ns() - start) / CALLS / BLOCKS


def main(rounds: int = 9) -> None:
    with tempfile.TemporaryDirectory() as folder:
        hooked, bare = calls(True, Path(folder)), calls(False, Path(folder))
        found: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name, function in hooked.items():
                found.setdefault(name, []).append(ns_a_block(function) - ns_a_block(bare[name]))
    print(f"{'ns a block':20} {'median':>8} {'worst':>8}")
    for name, times in sorted(found.items()):
        print(f"{name:20} {statistics.median(times):8.0f} {max(times):8.0f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
