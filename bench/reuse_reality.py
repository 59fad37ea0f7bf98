"""Difference between an LRU simulation and an engine's real pool, and its causes.

    python bench/reuse_reality.py TRACE

For a recorded trace, at the pool's own size: hits and evictions as recorded; of an LRU cache (`kvtrace reuse`); of an
LRU cache that never gives up a block in use; and of a replay of the pool, in which blocks without a name (not full yet)
and second blocks of a name take room too, and blocks are taken from a queue of free ones when the recording took one.
The replay should be the recording; if it is, the differences of the others are their simplifications and nothing else.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict, defaultdict
from pathlib import Path

from kvtrace.queries import Trace
from kvtrace.queries.reuse import lru_distances, read_references

LOOKUPS = """
    SELECT time_ns, request, list(block_hash ORDER BY position) AS chain, bool_or(counted) AS first,
        count(*) FILTER (hit) AS hits, count(*) FILTER (counted) AS counted
    FROM block_lookup WHERE engine_id = {engine} GROUP BY time_ns, request ORDER BY time_ns
"""
CHANGES = """
    SELECT time_ns, op, request, block_id, block_hash FROM block_event
    WHERE engine_id = {engine} AND pool = 0 AND op <> 'evict' ORDER BY rowid
"""


class KeepsUsed:
    """An LRU cache of names in which those in use stay, however many there are."""

    def __init__(self, blocks: int) -> None:
        self.room, self.evictions = blocks, 0
        self.users: OrderedDict[int, int] = OrderedDict()

    def __contains__(self, name: int) -> bool:
        return name in self.users

    def take(self) -> None:
        """Blocks without a name take no room here."""

    def reset(self) -> None:
        self.users.clear()

    def use(self, name: int) -> int:
        self.users[name] = self.users.pop(name, 0) + 1
        while len(self.users) > self.room and (unused := next((key for key, n in self.users.items() if not n), None)):
            del self.users[unused]
            self.evictions += 1
        return name

    store = use

    def release(self, name: int | None) -> None:
        if name is not None:
            self.users[name] = self.users.pop(name) - 1


class Block:
    """A block of the pool that was in use at least once."""

    def __init__(self, name: int | None = None) -> None:
        self.name, self.users = name, 1


class Pool:
    """vLLM's pool: blocks are taken from the front of a queue of free ones.

    Those with a name come back to its end, those without to its front. Several blocks may have one name.
    """

    def __init__(self, blocks: int) -> None:
        self.free = OrderedDict.fromkeys(Block() for _ in range(blocks))
        self.named: defaultdict[int, list[Block]] = defaultdict(list)
        self.evictions = 0

    def __contains__(self, name: int) -> bool:
        return bool(self.named[name])

    def take(self) -> None:
        block, _ = self.free.popitem(last=False)
        if block.name is not None:
            self.named[block.name].remove(block)
            self.evictions += 1

    def reset(self) -> None:
        for block in self.free:
            block.name = None
        self.named.clear()

    def use(self, name: int) -> Block:
        block = self.named[name][0]
        block.users += 1
        self.free.pop(block, None)
        return block

    def store(self, name: int) -> Block:
        self.named[name].append(Block(name))
        return self.named[name][-1]

    def release(self, block: Block | None) -> None:
        block = block or Block()
        block.users -= 1
        if not block.users:
            self.free[block] = None
            self.free.move_to_end(block, last=block.name is not None)


def replay(trace: Trace, engine: int, cache: KeepsUsed | Pool) -> tuple[int, int]:
    """Hits and evictions of `cache` under the recorded lookups, allocations, stores and releases."""
    lookups = trace.sql(LOOKUPS.format(engine=engine), format="arrow").to_pylist()
    changes = trace.sql(CHANGES.format(engine=engine), format="arrow").to_pylist()
    rows = sorted(
        [*((row, 0) for row in lookups), *((row, 1) for row in changes)], key=lambda r: (r[0]["time_ns"], r[1])
    )
    held: defaultdict[int | None, dict[int, Block | int]] = defaultdict(dict)  # by request and name
    surplus: defaultdict[int, int] = defaultdict(int)  # recorded allocations that were not needed here
    name_of: dict[int, int] = {}  # recorded block -> its name
    hits = 0
    for row, is_change in rows:
        request = row["request"]
        if not is_change:
            usable = row["counted"] if row["first"] else row["hits"]
            found = next((at for at, name in enumerate(row["chain"][:usable]) if name not in cache), usable)
            hits += found if row["first"] else 0
            held[request] = {name: cache.use(name) for name in row["chain"][:found]}
            for name in row["chain"][found : row["hits"]]:  # the recorded pool had it, this one computes it
                cache.take()
                held[request][name] = cache.store(name)
            surplus[request] = max(0, found - row["hits"])
        elif row["op"] == "allocate":
            name_of.pop(row["block_id"], None)
            if surplus[request]:
                surplus[request] -= 1
            else:
                cache.take()
        elif row["op"] == "cache":
            name_of[row["block_id"]] = row["block_hash"]
            if row["block_hash"] not in held[request]:
                held[request][row["block_hash"]] = cache.store(row["block_hash"])
        elif row["op"] == "hit" and request is None:  # a pin holds the block beside the request that uses it
            name = name_of[row["block_id"]]
            held[-1 - len(held)][name] = cache.use(name)
        elif row["op"] == "free":
            name = name_of.get(row["block_id"])
            if name not in held[request]:  # a pin ends, and with it the hold of the request or of the pin
                request = next((other for other, names in held.items() if name in names), request)
            cache.release(held[request].pop(name, None))
        elif row["op"] == "reset":
            name_of.clear()
            cache.reset()
    return hits, cache.evictions


def compare(path: Path) -> None:
    """Print the comparison of each engine."""
    with Trace(path) as trace:
        for engine in read_references(trace):
            blocks, references = engine.pool_blocks, engine.references
            distances = lru_distances(references)
            missed = (distances < 0) | (distances >= blocks)
            lru = int((references.counted & ~missed).sum()), int(missed.sum()) - min(blocks, references.blocks)
            evicted = "FROM block_event SELECT count(*) AS n WHERE op = 'evict' AND pool = 0 AND engine_id = "
            evictions = trace.sql(f"{evicted}{engine.engine_id}", format="arrow")["n"][0].as_py()
            print(f"engine {engine.engine_id}: {blocks} blocks, {references.lookups:,.0f} blocks looked up")
            for what, (hits, evicted) in {
                "recorded": (engine.recorded_hits, evictions),
                "LRU cache": lru,
                "LRU cache that keeps blocks in use": replay(trace, engine.engine_id, KeepsUsed(blocks)),
                "replay of the pool": replay(trace, engine.engine_id, Pool(blocks)),
            }.items():
                print(f"  {what:36} {hits:6} hits ({hits / references.lookups:.4f}) {evicted:6} evictions")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    compare(parser.parse_args().trace)


if __name__ == "__main__":
    main()
