"""Cost of recording a KV block to its engine: evicted and allocated, cached, freed; in Python and compiled.

    python bench/block_cost.py [ROUNDS]

The probes' own hooks on stand-ins for vLLM's block pool that do nothing, 32 blocks a call; the stand-ins' time without
hooks is taken off. Both kinds take turns; median and worst of all turns.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvtrace.capture.recorder import Recorder
from kvtrace.capture.stream import NATIVE_VARIABLE
from kvtrace.probes import blocks
from kvtrace.probes.engine import Pool
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Patches
from kvtrace.probes.state import EngineState

BLOCKS, CALLS, KEY = 32, 2_000, bytes(range(36))


class Block:
    """As large as vLLM's."""

    __slots__ = ("block_id", "is_null", "ref_cnt")

    def __init__(self, number: int) -> None:
        self.block_id, self.ref_cnt, self.is_null = number, 1, False


FOUND = [Block(number) for number in range(BLOCKS)]


def calls(hooked: bool, native: bool, folder: Path) -> dict[str, Callable[[], None]]:
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
        os.environ[NATIVE_VARIABLE] = str(int(native))
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
        kinds = {
            "compiled": calls(True, True, Path(folder) / "compiled"),
            "Python": calls(True, False, Path(folder) / "python"),
        }
        bare = calls(False, False, Path(folder))
        found: dict[tuple[str, str], list[float]] = {}
        for _ in range(rounds):
            for kind, functions in kinds.items():
                for name, function in functions.items():
                    found.setdefault((name, kind), []).append(ns_a_block(function) - ns_a_block(bare[name]))
    print(f"{'ns a block':20} {'kind':10} {'median':>8} {'worst':>8}")
    for (name, kind), times in sorted(found.items()):
        print(f"{name:20} {kind:10} {statistics.median(times):8.0f} {max(times):8.0f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
