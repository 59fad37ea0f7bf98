"""Query job-kv against pools and tiers that lived at random and counted one job's blocks for themselves."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from kvtrace.queries import Trace

from .conftest import MakeTrace, values

ENGINES = 10
CONTENTS = range(1, 9)
JOB = (1, 2)
"""The requests of the job; request 3 is of another."""


@dataclass
class Block:
    content: int | None = None
    owner: int = 0
    users: list[int] = field(default_factory=list)


class Engine:
    """A pool of six blocks and a tier; `rows` are what the query has to answer after each moment."""

    def __init__(self, number: int) -> None:
        self.number, self.random, self.now = number, random.Random(number), 0
        self.blocks = {number: Block() for number in range(1, 7)}
        self.free = list(self.blocks)
        self.tier: set[int] = set()
        self.known: set[int] = set()
        self.events: list[tuple[Any, ...]] = []
        self.tier_events: list[tuple[Any, ...]] = []
        self.rows: list[tuple[int, ...]] = []
        actions = (
            self.allocate,
            self.allocate,
            self.cache,
            self.cache,
            self.hit,
            self.let_go,
            self.let_go,
            self.offload,
        )
        for _ in range(150):
            self.now += 1
            for _ in range(self.random.choice((1, 1, 2, 4))):  # blocks changed by one call share their time
                self.random.choice(actions)()
            if len(self.free) == len(self.blocks) and self.random.random() < 0.2:
                self.reset()
            self.snapshot()

    def emit(self, block: int | None, op: str, request: int | None, content: int | None = None) -> None:
        references = len(self.blocks[block].users) if block else 0
        group = None if content is None else 0
        self.events.append((self.number, self.now, block, op, references, request, content, group))

    def allocate(self) -> None:
        if self.free:
            number, request = self.free.pop(0), self.random.choice((1, 2, 3))
            block = self.blocks[number]
            if block.content is not None:
                content, block.content = block.content, None
                self.emit(number, "evict", request, content)
            block.users, block.owner = [request], request
            self.emit(number, "allocate", request)

    def cache(self) -> None:
        full = [number for number, block in self.blocks.items() if block.users and block.content is None]
        if full:
            number = self.random.choice(full)
            block = self.blocks[number]
            block.content = self.random.choice(CONTENTS)
            if block.owner in JOB:
                self.known.add(block.content)
            loaded = self.random.random() < 0.3  # what a connector loads is cached in nobody's name
            self.emit(number, "cache", None if loaded else block.owner, block.content)

    def hit(self) -> None:
        request = self.random.choice((1, 2, 3))
        found = [n for n, block in self.blocks.items() if block.content is not None and request not in block.users]
        if found:
            number = self.random.choice(found)
            block = self.blocks[number]
            if number in self.free:
                self.free.remove(number)
            block.users.append(request)
            if request in JOB and block.content is not None:
                self.known.add(block.content)
            self.emit(number, "hit", request)

    def let_go(self) -> None:
        used = [number for number, block in self.blocks.items() if block.users]
        if used:
            number = self.random.choice(used)
            block = self.blocks[number]
            request = block.users.pop(self.random.randrange(len(block.users)))
            if not block.users:
                self.free.append(number)
            delayed = not block.users and self.random.random() < 0.3
            self.emit(number, "free", None if delayed else request)

    def offload(self) -> None:
        content = self.random.choice(CONTENTS)
        op = "evict" if content in self.tier else "store"
        self.tier ^= {content}
        self.tier_events.append((self.number, self.now, "C", "cpu", op, content, 0))

    def reset(self) -> None:
        for block in self.blocks.values():
            block.content = None
        self.emit(None, "reset", None)

    def snapshot(self) -> None:
        users: dict[int, int] = defaultdict(int)
        for block in self.blocks.values():
            if block.content is not None:
                users[block.content] += len(block.users)
        used = {content for content, count in users.items() if count} & self.known
        gone = self.known - set(users)
        row = (
            sum(user in JOB for block in self.blocks.values() for user in block.users),
            len(self.known),
            len(used),
            len(self.known - used - gone),
            len(gone),
            len(self.known & self.tier),
            len(gone & self.tier),
        )
        if row != (self.rows or [(0,) * 7])[-1]:
            self.rows.append(row)


def test_a_jobs_blocks_are_those_of_the_pool_and_the_tier(make_trace: MakeTrace) -> None:
    engines = [Engine(number) for number in range(1, ENGINES + 1)]
    requests, events, tier_events = [], [], []
    for engine in engines:
        keys = {None: None} | {request: 10 * engine.number + request for request in (1, 2, 3)}
        jobs = {
            request: f"job {engine.number}" if request in JOB else f"other {engine.number}" for request in (1, 2, 3)
        }
        requests += [(keys[request], jobs[request], request, engine.number, 0) for request in (1, 2, 3)]
        events += [(*event[:5], keys[event[5]], *event[6:], 0) for event in engine.events]
        tier_events += engine.tier_events
    path = make_trace(
        f"INSERT INTO request (request, session, turn, engine_id, arrival_ns) VALUES {values(requests)};"
        "INSERT INTO block_event (engine_id, time_ns, block_id, op, ref_count, request, block_hash, kv_group, pool)"
        f" VALUES {values(events)};"
        "INSERT INTO tier_block (engine_id, time_ns, connector, tier, op, block_hash, kv_group)"
        f" VALUES {values(tier_events)};"
    )
    figures = ["held", "content", "used", "cached_free", "gone", "tier", "tier_only"]
    with Trace(path) as trace:
        for engine in engines:
            rows = trace.query("job-kv", session=f"job {engine.number}", format="arrow").to_pylist()[1:]
            assert [tuple(row[f"{name}_blocks"] for name in figures) for row in rows] == engine.rows
    assert any(row[-1] for engine in engines for row in engine.rows)
