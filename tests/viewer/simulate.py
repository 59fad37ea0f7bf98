"""A small deterministic scheduler that fills a trace: multi-turn chats in a pool too small for them.

Times, block moves and counts agree with each other as they do in a recorded trace, so that what the page shows can be
checked against the trace. No figure of it was measured on anything.
"""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from kvtrace.ingest.schema.trace import TRACE_VERSION, create_schema

from .pool import BlockPool, content_hash

EPOCH_NS = 1_760_000_000_000_000_000
BLOCK_SIZE = 16
BUDGET = 256
MAX_SEQS = 8
SHARED_BLOCKS = 4


@dataclass
class Request:
    number: int
    session: int
    turn: int
    arrival_ns: int
    prompt_tokens: int
    max_tokens: int
    computed: int = 0
    outputs: int = 0
    blocks: list[int] = field(default_factory=list)
    preemptions: int = 0
    preempted: bool = False
    lookups: int = 0
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.outputs


class Simulation:
    """One engine serving `sessions` chats of `turns` turns each."""

    def __init__(self, engine_id: int, sessions: int, turns: int, blocks: int, seed: int) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.engine_id, self.turns, self.blocks = engine_id, turns, blocks
        self.random = random.Random(seed)
        self.now, self.step = EPOCH_NS + 3_000_000_000, 0
        self.pool = BlockPool(blocks, self._note_block)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.arrivals: list[Request] = []
        self.count = 0
        for session in range(sessions):
            start = self.now + self.random.randrange(900_000_000)
            self._arrive(session, 1, start, BLOCK_SIZE * SHARED_BLOCKS + self.random.randrange(60, 220))

    def run(self) -> dict[str, list[dict[str, Any]]]:
        """Serve everything; the trace's rows by table."""
        while self.arrivals or self.waiting or self.running:
            self._queue_arrivals()
            if self.waiting or self.running:
                self._one_step()
            else:
                self.now = min(request.arrival_ns for request in self.arrivals)
        return self.rows

    def _note(self, table: str, **row: Any) -> None:
        self.rows[table].append({"engine_id": self.engine_id, **row})

    def _note_block(self, op: str, block: int, references: int, request: int | None, value: int | None) -> None:
        facts = {"ref_count": references, "request": request, "block_hash": value, "pool": 0}
        facts["kv_group"] = None if value is None else 0
        self._note("block_event", time_ns=self.now, step=self.step or None, block_id=block, op=op, **facts)

    def _note_turn(self, request: Request, op: str, **facts: Any) -> None:
        facts = {"computed_tokens": request.computed, "output_tokens": request.outputs, **facts}
        self._note(
            "request_event",
            time_ns=self.now,
            step=self.step,
            request=request.number,
            op=op,
            blocks=len(request.blocks),
            **facts,
        )

    def _arrive(self, session: int, turn: int, time_ns: int, prompt_tokens: int) -> None:
        self.count += 1
        number = self.engine_id * 1000 + self.count
        self.arrivals.append(
            Request(number, session, turn, time_ns, prompt_tokens, self.random.choice((24, 48, 96, 128)))
        )

    def _queue_arrivals(self) -> None:
        for request in sorted(self.arrivals, key=lambda request: request.arrival_ns):
            if request.arrival_ns <= self.now:
                self.arrivals.remove(request)
                self.waiting.append(request)
                request.facts = {"arrival_ns": request.arrival_ns - 400_000, "queued_ns": request.arrival_ns}

    def _one_step(self) -> None:
        self.step += 1
        start, budget, preempted = self.now, BUDGET, 0
        scheduled: list[tuple[Request, int, str, int]] = []
        for request in list(self.running):
            if request not in self.running or not budget:
                continue
            count = min(request.tokens - request.computed, budget)
            needed = self._needed(request, request.computed + count)
            while needed > len(self.pool.free):
                victim = self.running.pop()
                budget += sum(tokens for other, tokens, *_ in scheduled if other is victim)
                scheduled = [entry for entry in scheduled if entry[0] is not victim]
                self._preempt(victim)
                preempted += 1
                if victim is request:
                    break
            if request in self.running:
                scheduled.append(self._grow(request, count))
                budget -= count
        limit = self._admit(scheduled, budget, preempted)
        budget = BUDGET - sum(tokens for _, tokens, *_ in scheduled)
        self._note_step(start, scheduled, budget, preempted, limit)
        self._finish_step(scheduled)

    def _needed(self, request: Request, tokens: int) -> int:
        return -(-tokens // BLOCK_SIZE) - len(request.blocks)

    def _grow(self, request: Request, count: int) -> tuple[Request, int, str, int]:
        before = len(request.blocks)
        request.blocks += self.pool.allocate(self._needed(request, request.computed + count), request.number)
        phase = "decode"
        if request.preempted:
            phase = "resumed"
        elif request.computed < request.prompt_tokens:
            phase = "prefill" if request.computed + count >= request.prompt_tokens else "chunked_prefill"
        return request, count, phase, len(request.blocks) - before

    def _preempt(self, request: Request) -> None:
        self._note_turn(request, "preempt")
        self.pool.release(request.blocks, request.number)
        request.blocks, request.computed, request.preempted = [], 0, True
        request.preemptions, request.lookups = request.preemptions + 1, 0
        self.waiting.insert(0, request)

    def _admit(self, scheduled: list[tuple[Request, int, str, int]], budget: int, preempted: int) -> dict[str, Any]:
        while self.waiting:
            request = self.waiting[0]
            head = {"limit_request": request.number}
            if preempted:
                return {"admission_limit": "preempted", **head}
            if len(self.running) == MAX_SEQS:
                return {"admission_limit": "max_num_seqs", **head}
            if not budget:
                return {"admission_limit": "token_budget", **head}
            found = self._look_up(request)
            count = min(request.tokens - len(found) * BLOCK_SIZE, budget)
            need = -(-(len(found) * BLOCK_SIZE + count) // BLOCK_SIZE) - len(found)
            free = len(self.pool.free) - sum(self.pool.references[block] == 0 for block in found)
            self._note_lookup(request, len(found), need <= free)
            if need > free:
                return {
                    "admission_limit": "kv_insufficient",
                    **head,
                    "limit_need_blocks": need,
                    "limit_free_blocks": free,
                }
            scheduled.append(self._start(request, found, count))
            budget -= count
        return {"admission_limit": "none"}

    def _hashes(self, request: Request, tokens: int) -> list[int]:
        return [content_hash(request.session, index, SHARED_BLOCKS) for index in range(tokens // BLOCK_SIZE)]

    def _look_up(self, request: Request) -> list[int]:
        return self.pool.find(self._hashes(request, request.tokens - 1))

    def _note_lookup(self, request: Request, found: int, admitted: bool) -> None:
        self._note(
            "prefix_lookup",
            time_ns=self.now,
            step=self.step,
            request=request.number,
            queried_tokens=request.tokens,
            local_hit_tokens=found * BLOCK_SIZE,
            first_missing_block=found,
            admitted=admitted,
            repeat=request.lookups,
            resumed=request.preempted,
            enabled=True,
        )
        request.lookups += 1

    def _start(self, request: Request, found: list[int], count: int) -> tuple[Request, int, str, int]:
        self.waiting.remove(request)
        self.running.append(request)
        self.pool.touch(found, request.number)
        request.blocks, request.computed = list(found), len(found) * BLOCK_SIZE
        entry = self._grow(request, count)
        self._note_turn(
            request, "resume" if request.preempted else "schedule", local_cached_tokens=len(found) * BLOCK_SIZE
        )
        if not request.preempted:
            request.facts |= {"scheduled_ns": self.now, "local_cached_tokens": len(found) * BLOCK_SIZE}
        return entry

    def _note_step(
        self,
        start: int,
        scheduled: list[tuple[Request, int, str, int]],
        budget: int,
        preempted: int,
        limit: dict[str, Any],
    ) -> None:
        phases = {"prefill": [0, 0], "chunked_prefill": [0, 0], "decode": [0, 0], "resumed": [0, 0]}
        for request, tokens, phase, new_blocks in scheduled:
            phases[phase][0] += 1
            phases[phase][1] += tokens
            self._note(
                "step_request",
                step=self.step,
                request=request.number,
                phase=phase,
                scheduled_tokens=tokens,
                computed_tokens=request.computed,
                new_blocks=new_blocks,
            )
        self.now += 180_000 + 9_000 * len(scheduled)
        counts = {f"{phase}_requests": entry[0] for phase, entry in phases.items()}
        counts |= {f"{phase}_tokens": entry[1] for phase, entry in phases.items()}
        self._note(
            "step_schedule",
            start_ns=start,
            scheduled_ns=self.now,
            step=self.step,
            running=len(self.running),
            waiting=len(self.waiting),
            **counts,
            budget_tokens=BUDGET,
            budget_left_tokens=budget,
            free_blocks=len(self.pool.free),
            used_blocks=self.blocks - len(self.pool.free),
            cached_blocks=len(self.pool.block_of),
            preempted_requests=preempted,
            **limit,
        )

    def _finish_step(self, scheduled: list[tuple[Request, int, str, int]]) -> None:
        total = sum(tokens for _, tokens, *_ in scheduled)
        self.now += 2_400_000 + 21_000 * total + self.random.randrange(400_000)
        update, outputs, finished = self.now, 0, 0
        for request, tokens, *_ in scheduled:
            hashes = self._hashes(request, request.computed + tokens)
            for block, value in zip(request.blocks, hashes, strict=False):
                self.pool.cache(block, value, request.number)
            request.computed += tokens
            if request.computed == request.tokens:
                request.preempted, request.outputs, outputs = False, request.outputs + 1, outputs + 1
                if request.outputs == 1:
                    request.facts["first_token_ns"] = self.now
                    self._note_turn(request, "first_token")
                if request.outputs == request.max_tokens:
                    finished += 1
                    self._finish(request)
        self.now += 60_000
        self._note(
            "step_update",
            update_ns=update,
            end_ns=self.now,
            step=self.step,
            output_tokens=outputs,
            finished_requests=finished,
        )

    def _finish(self, request: Request) -> None:
        self._note_turn(request, "finish", reason="length")
        self.pool.release(request.blocks, request.number)
        self.running.remove(request)
        request.blocks = []
        self._note_request(request)
        if request.turn < self.turns:
            think_ns = self.random.randrange(50_000_000, 500_000_000)
            follow_up = request.tokens + self.random.randrange(20, 90)
            self._arrive(request.session, request.turn + 1, self.now + think_ns, follow_up)

    def _note_request(self, request: Request) -> None:
        self._note(
            "request",
            request=request.number,
            internal_id=f"chatcmpl-{request.session:02d}-{request.turn}-{request.number:08x}",
            external_id=f"chat-{request.session:02d}/turn-{request.turn}",
            session=f"session-{request.session:02d}",
            turn=request.turn,
            tenant=f"tenant-{request.session % 3}",
            lora="adapter" if request.session % 3 == 0 else None,
            priority=0,
            prompt_tokens=request.prompt_tokens,
            max_tokens=request.max_tokens,
            output_tokens=request.outputs,
            preemptions=request.preemptions,
            finished_ns=self.now,
            finish_reason="length",
            **request.facts,
        )


def create_trace(path: Path, engines: int = 1, sessions: int = 10, turns: int = 4, blocks: int = 88) -> Path:
    """Write a trace of `engines` simulated engines; with 0 engines, one in which nothing was recorded."""
    path.write_bytes(_trace(engines, sessions, turns, blocks))
    return path


@cache
def _trace(engines: int, sessions: int, turns: int, blocks: int) -> bytes:
    """The file, made once: many tests change a copy of the same one."""
    with tempfile.TemporaryDirectory() as folder:
        return _write_trace(Path(folder) / "trace.duckdb", engines, sessions, turns, blocks).read_bytes()


def _write_trace(path: Path, engines: int, sessions: int, turns: int, blocks: int) -> Path:
    with duckdb.connect(str(path)) as connection:
        create_schema(connection)
        insert(connection, "run", [{"key": key, "value": value} for key, value in _run_facts(engines).items()])
        for engine_id in range(1, engines + 1):
            for table, rows in Simulation(engine_id, sessions, turns, blocks, seed=engine_id).run().items():
                insert(connection, table, rows)
            insert(connection, "engine", [_engine_facts(engine_id, blocks)])
            insert(connection, "process", [_process_facts(engine_id)])
    return path


def insert(connection: duckdb.DuckDBPyConnection, table: str, rows: list[dict[str, Any]]) -> None:
    """Add rows to a table, by column name; columns not named are NULL."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    types = {"block_hash": pa.uint64()}
    batch = pa.table({name: pa.array([row.get(name) for row in rows], types.get(name)) for name in columns})
    connection.register("batch", batch)
    connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM batch")
    connection.unregister("batch")


def _run_facts(engines: int) -> dict[str, str]:
    facts = {
        "trace_version": str(TRACE_VERSION),
        "kvtrace_version": "0.1.0",
        "command": '["simulated", "multi-turn", "chats"]',
        "started_ns": str(EPOCH_NS),
    }
    return facts | ({"vllm_version": "simulated", "exit_code": "0"} if engines else {})


def _engine_facts(engine_id: int, blocks: int) -> dict[str, Any]:
    return {
        "engine_id": engine_id,
        "model": "simulated",
        "block_size_tokens": BLOCK_SIZE,
        "blocks": blocks,
        "kv_groups": 1,
        "max_num_batched_tokens": BUDGET,
        "max_num_seqs": MAX_SEQS,
        "max_model_len": 2048,
        "policy": "fcfs",
        "prefix_caching": True,
        "chunked_prefill": True,
        "async_scheduling": False,
        "block_bytes": 2 * 8 * 64 * 2 * BLOCK_SIZE * 4,
        "tp_size": 1,
        "pp_size": 1,
    }


def _process_facts(engine_id: int) -> dict[str, Any]:
    return {
        "process_id": engine_id,
        "roles": "engine",
        "host": "simulated",
        "pid": 100 + engine_id,
        "dp_rank": engine_id - 1,
        "started_ns": EPOCH_NS,
    }
