"""`kv-fragmentation` and `block_hold` on random lives of paged requests, against counting one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import duckdb
import pytest

from kvtrace.queries import Trace

from .conftest import MakeTrace

SIZE = 4
STEPS = 60
ENGINES = 12


COLUMNS = {
    "step_schedule": "engine_id, step, scheduled_ns, used_blocks",
    "step_request": "engine_id, step, request, scheduled_tokens, computed_tokens, new_blocks",
    "request_event": "engine_id, time_ns, request, op, blocks",
    "block_event": "engine_id, time_ns, block_id, op, ref_count, request, pool",
}


@dataclass
class Held:
    """A request's reference to a block; it runs as long as it has any."""

    block: int
    request: int
    op: str
    start_ns: int
    end_ns: int | None = None


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
        self.idle: dict[int, set[int]] = {}  # by block that nobody uses and a lookup may find
        self.references: dict[int, int] = {}
        self.full: dict[tuple[int, int], int] = {}  # by family and position: the block that holds that prefix
        self.fresh = iter(range(1, 100_000))
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.requests = 0
        self.left: list[Request] = []
        self.rows: dict[str, list[str]] = {table: [] for table in COLUMNS}
        self.held: list[Held] = []
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
        op = "resume" if request in self.left else "schedule"
        self.rows["request_event"].append(f"({self.engine}, {1000 * step - 50}, {request.number}, '{op}', 0)")
        self.compute(request, step, hit)

    def compute(self, request: Request, step: int, hit: list[int]) -> None:
        left = request.prompt - request.stored
        tokens = self.random.randint(1, left) if left > 0 else 1
        before, had = request.stored, len(request.blocks)
        for block in hit:
            self.references[block] += 1
            if block in self.idle:
                self.slots[block] = self.idle.pop(block)
            self.refer(block, request, "hit", 1000 * step)
        request.blocks += hit
        request.stored += tokens
        while len(request.blocks) * SIZE < request.stored:
            block = next(self.fresh)
            request.blocks.append(block)
            self.slots[block], self.references[block] = set(), 1
            self.refer(block, request, "allocate", 1000 * step)
        for token in range(before, request.stored):
            self.slots[request.blocks[token // SIZE]].add(token % SIZE)
        self.rows["step_request"].append(
            f"({self.engine}, {step}, {request.number}, {tokens}, {before}, {len(request.blocks) - had})"
        )

    def leave(self, request: Request, op: str, moment: int) -> None:
        self.rows["request_event"].append(f"({self.engine}, {moment}, {request.number}, '{op}', {len(request.blocks)})")
        for block in request.blocks:
            self.references[block] -= 1
            self.refer(block, request, "free", moment)
            if not self.references[block]:
                self.idle[block] = self.slots.pop(block)
        request.blocks, request.stored = [], 0
        self.running.remove(request)
        self.left.append(request)

    def refer(self, block: int, request: Request, op: str, moment: int) -> None:
        count = self.references[block]
        self.rows["block_event"].append(f"({self.engine}, {moment}, {block}, '{op}', {count}, {request.number}, 0)")
        if op == "free":
            [held] = [h for h in self.held if (h.block, h.request, h.end_ns) == (block, request.number, None)]
            held.end_ns = moment
        else:
            self.held.append(Held(block, request.number, op, moment))

    def time_held(self) -> Counter[str]:
        """Block time by holder: a running request that allocated the block comes before those that found it."""
        end = max(max(h.start_ns, h.end_ns or 0) for h in self.held)
        total: Counter[str] = Counter()
        for block in {h.block for h in self.held}:
            mine = [h for h in self.held if h.block == block]
            edges = sorted({h.start_ns for h in mine} | {h.end_ns or end for h in mine})
            for start, until in pairwise(edges):
                ops = {h.op for h in mine if h.start_ns <= start and (h.end_ns or end) >= until}
                if ops:
                    total["running" if "allocate" in ops else "prefix_sharing"] += until - start
        return total


@pytest.fixture
def lives() -> list[Paged]:
    lives = [Paged(engine) for engine in range(1, ENGINES + 1)]
    for life in lives:
        life.run()
    return lives


@pytest.fixture
def trace(lives: list[Paged], make_trace: MakeTrace) -> Iterator[Trace]:
    sql = f"INSERT INTO engine (engine_id, block_size_tokens) SELECT unnest(range(1, {ENGINES + 1})), {SIZE};"
    for table, columns in COLUMNS.items():
        rows = ", ".join(row for life in lives for row in life.rows[table])
        sql += f"INSERT INTO {table} ({columns}) VALUES {rows};"
    with Trace(make_trace(sql)) as opened:
        yield opened


def test_every_slot_is_counted_once_whoever_shares_it(lives: list[Paged], trace: Trace) -> None:
    """GIVEN requests that share blocks WHEN asking for the waste THEN it is what counting slots one by one gives."""
    found = trace.query("kv-fragmentation", format="arrow").to_pylist()

    expected = [(life.engine, step, *counts) for life in lives for step, counts in enumerate(life.expected, 1)]
    columns = ("engine_id", "step", "requests", "used_blocks", "stored_tokens", "table_blocks")
    assert [tuple(row[name] for name in columns) for row in found] == expected
    assert all(row["wasted_tokens"] == row["allocated_tokens"] - row["stored_tokens"] for row in found)
    assert sum(row["table_blocks"] > row["used_blocks"] for row in found) > 50, "the requests are meant to share"
    assert sum(row["wasted_tokens"] for row in found) > 0


@pytest.mark.parametrize("pins", [0, 1], ids=["no pins", "with pins beside"])
def test_block_hold_gives_every_moment_of_a_block_to_its_holder(pins: int, lives: list[Paged], trace: Trace) -> None:
    """A pin never outranks a running request, so these change nothing but how the view comes to it."""
    trace.close()
    with duckdb.connect(str(trace.path)) as connection:
        connection.execute(
            "INSERT INTO pin_start (engine_id, time_ns, pin, block_id, cause) SELECT DISTINCT engine_id, time_ns, "
            f"block_id, block_id, 'connector'::e_pin_cause FROM block_event WHERE op = 'allocate' AND {pins} = 1"
        )
    with Trace(trace.path) as opened:
        found = opened.sql(
            "SELECT engine_id, held_by, sum(end_ns - start_ns)::BIGINT AS ns FROM block_hold GROUP BY ALL",
            format="arrow",
        ).to_pylist()

    assert {(row["engine_id"], row["held_by"]): row["ns"] for row in found} == {
        (life.engine, holder): ns for life in lives for holder, ns in life.time_held().items()
    }
