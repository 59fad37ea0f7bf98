"""`kv-fragmentation` on random lives of paged requests, against counting the slots one by one."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from kvtrace.queries import Trace

from .conftest import MakeTrace

SIZE = 4
STEPS = 60
ENGINES = 12


@dataclass
class Request:
    number: int
    family: int
    prompt: int
    prefix: int
    stored: int = 0
    blocks: list[int] = field(default_factory=list)


class Paged:
    """Requests of families with common prefixes grow, share full blocks, wait, are preempted and end."""

    def __init__(self, engine: int) -> None:
        self.random = random.Random(engine)
        self.engine = engine
        self.slots: dict[int, set[int]] = {}  # by block in use: its slots that hold a token
        self.references: dict[int, int] = {}
        self.full: dict[tuple[int, int], int] = {}  # by family and position: the block that holds that prefix
        self.fresh = iter(range(1, 100_000))
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.requests = 0
        self.rows: dict[str, list[str]] = {"step_schedule": [], "step_request": [], "request_event": []}
        self.expected: list[tuple[int, int, int, int]] = []  # requests, used blocks, stored tokens, table entries

    def run(self) -> None:
        for step in range(1, STEPS + 1):
            for request in [r for r in self.running if r.stored > r.prompt and self.random.random() < 0.1]:
                self.leave(request, "finish", 1000 * step - 500)
            if self.running and self.random.random() < 0.15:
                lost = self.random.choice(self.running)
                self.leave(lost, "preempt", 1000 * step - 100)
                self.waiting.append(lost)
            for request in list(self.running):
                if self.random.random() < 0.8:
                    self.compute(request, step, [])
            if self.random.random() < 0.4:
                self.admit(step)
            used = len(self.slots)
            self.rows["step_schedule"].append(f"({self.engine}, {step}, {1000 * step}, {used})")
            stored = sum(map(len, self.slots.values()))
            self.expected.append((len(self.running), used, stored, sum(len(r.blocks) for r in self.running)))
            for request in self.running:
                for position in range(min(request.prefix, request.stored) // SIZE):
                    self.full.setdefault((request.family, position), request.blocks[position])

    def admit(self, step: int) -> None:
        if self.waiting and self.random.random() < 0.5:
            request = self.waiting.pop()
        else:
            self.requests += 1
            prompt = self.random.randint(1, 30)
            request = Request(100 * self.engine + self.requests, self.random.randrange(2), prompt, min(prompt - 1, 12))
        hit: list[int] = []
        while (request.family, len(hit)) in self.full and (len(hit) + 1) * SIZE <= request.prefix:
            hit.append(self.full[request.family, len(hit)])
        request.stored = len(hit) * SIZE
        self.running.append(request)
        self.compute(request, step, hit)

    def compute(self, request: Request, step: int, hit: list[int]) -> None:
        left = request.prompt - request.stored
        tokens = self.random.randint(1, left) if left > 0 else 1
        before, had = request.stored, len(request.blocks)
        for block in hit:
            self.references[block] += 1
        request.blocks += hit
        request.stored += tokens
        while len(request.blocks) * SIZE < request.stored:
            block = next(self.fresh)
            request.blocks.append(block)
            self.slots[block], self.references[block] = set(), 1
        for token in range(before, request.stored):
            self.slots[request.blocks[token // SIZE]].add(token % SIZE)
        self.rows["step_request"].append(
            f"({self.engine}, {step}, {request.number}, {tokens}, {before}, {len(request.blocks) - had})"
        )

    def leave(self, request: Request, op: str, moment: int) -> None:
        self.rows["request_event"].append(f"({self.engine}, {moment}, {request.number}, '{op}', {len(request.blocks)})")
        for block in request.blocks:
            self.references[block] -= 1
            if not self.references[block]:
                del self.slots[block]
                self.full = {key: kept for key, kept in self.full.items() if kept != block}
        request.blocks, request.stored = [], 0
        self.running.remove(request)


COLUMNS = {
    "step_schedule": "engine_id, step, scheduled_ns, used_blocks",
    "step_request": "engine_id, step, request, scheduled_tokens, computed_tokens, new_blocks",
    "request_event": "engine_id, time_ns, request, op, blocks",
}


@pytest.fixture
def lives() -> list[Paged]:
    lives = [Paged(engine) for engine in range(1, ENGINES + 1)]
    for life in lives:
        life.run()
    return lives


def test_every_slot_is_counted_once_whoever_shares_it(lives: list[Paged], make_trace: MakeTrace) -> None:
    """GIVEN requests that share blocks WHEN asking for the waste THEN it is what counting slots one by one gives."""
    sql = f"INSERT INTO engine (engine_id, block_size_tokens) SELECT unnest(range(1, {ENGINES + 1})), {SIZE};"
    for table, columns in COLUMNS.items():
        rows = ", ".join(row for life in lives for row in life.rows[table])
        sql += f"INSERT INTO {table} ({columns}) VALUES {rows};"
    with Trace(make_trace(sql)) as trace:
        found = trace.query("kv-fragmentation", format="arrow").to_pylist()

    expected = [(life.engine, step, *counts) for life in lives for step, counts in enumerate(life.expected, 1)]
    columns = ("engine_id", "step", "requests", "used_blocks", "stored_tokens", "table_blocks")
    assert [tuple(row[name] for name in columns) for row in found] == expected
    assert all(row["wasted_tokens"] == row["allocated_tokens"] - row["stored_tokens"] for row in found)
    assert sum(row["table_blocks"] > row["used_blocks"] for row in found) > 50, "the requests are meant to share"
    assert sum(row["wasted_tokens"] for row in found) > 0
