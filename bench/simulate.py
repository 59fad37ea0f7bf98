"""A small model of vLLM's scheduler and block manager: what tiles of generated captures and test traces consist of.

Multi-turn sessions share prefixes, the pool is too small for all of them, so lookups hit and miss, blocks are evicted
and requests are preempted. Request, string and hash numbers are local to the tile; the generator makes them global.
No figure of it was measured on anything.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvtrace.events import EVENTS, BlockOp, FinishReason, GraphMode, Limit, Phase, RequestOp, TableOp

BLOCK_TOKENS = 16
MAX_MODEL_TOKENS = 8192
NEVER = -1


@dataclass(frozen=True)
class Load:
    """Limits of the engine, what sessions ask of it, and its times. A pair is the least and the most."""

    budget_tokens: int = 2048
    max_seqs: int = 64
    system_blocks: int = 12
    prompt_tokens: tuple[int, int] = (300, 1200)
    output_tokens: tuple[int, int] = (20, 90)
    added_tokens: tuple[int, int] = (100, 600)
    think_ms: tuple[int, int] = (200, 3000)
    start_ns: int = 1_000_000
    apart_ns: int = 40_000_000
    """From a session's beginning to the next one's."""
    step_ns: int = 6_000_000
    token_ns: int = 9_000


@dataclass
class Request:
    number: int  # in the tile, from 1
    session: int
    turn: int
    prompt_tokens: int
    max_tokens: int
    output_tokens: int = 0
    computed_tokens: int = 0
    recompute_until: int = 0
    preempted: bool = False
    lookups: int = 0
    blocks: list[int] = field(default_factory=list)
    cached_blocks: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


USUAL = Load()


class Tile:
    """Runs some sessions to their end. `records[event]` are tuples: order, then the event's fields."""

    def __init__(
        self, free: Iterable[int], old_hashes: dict[int, int], sessions: int, seed: int = 1, load: Load = USUAL
    ) -> None:
        self.load = load
        self.random = random.Random(seed)
        self.records: dict[str, list[tuple[int, ...]]] = {name: [] for name in EVENTS}
        self.free = dict.fromkeys(free)  # in order of eviction
        self.blocks = len(self.free)
        self.ref_count = dict.fromkeys(self.free, 0)
        self.hash_of = {block: -number for block, number in old_hashes.items()}  # the tile before: negative
        self.block_of: dict[int, int] = {}
        self.order = 0
        self.now_ns = load.start_ns
        self.step = 0
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.requests = 0
        self.sessions = sessions
        self.later: list[tuple[int, Request]] = []

    def run(self, most_records: int | None = None) -> Tile:
        for session in range(1, self.sessions + 1):
            start_ns = self.load.start_ns - USUAL.start_ns + session * self.load.apart_ns
            self._turn(session, 1, self.random.randint(*self.load.prompt_tokens), start_ns)
        while self.later or self.waiting or self.running:
            if most_records is not None and self.order >= most_records:
                break
            if not self.waiting and not self.running:
                self.now_ns = max(self.now_ns, min(self.later)[0])
            self._arrive()
            self._schedule_step()
        return self

    def emit(self, event: str, *values: int) -> None:
        self.records[event].append((self.order, *values))
        self.order += 1

    def _turn(self, session: int, turn: int, prompt_tokens: int, at_ns: int) -> None:
        self.requests += 1
        request = Request(self.requests, session, turn, prompt_tokens, self.random.randint(*self.load.output_tokens))
        self.later.append((at_ns, request))
        self.later.sort(key=lambda item: item[0])

    def _arrive(self) -> None:
        while self.later and self.later[0][0] <= self.now_ns:
            at_ns, request = self.later.pop(0)
            # External ids and session tags are strings of their own: the generator numbers all three kinds.
            self.emit("request_arrival", at_ns - 60_000, request.number, request.number)
            self.emit("request_owner", at_ns - 60_000, request.number, request.session, 0)
            limits = (request.prompt_tokens, request.max_tokens, 0, request.session, request.turn, 0)
            self.emit("request_queued", at_ns, request.number, at_ns - 80_000, *limits)
            self.waiting.append(request)

    def _schedule_step(self) -> None:
        self.step += 1
        self.start_ns = self.now_ns
        self.preempted = 0
        self.limit = (Limit.none, 0, NEVER, NEVER, NEVER)
        budget, shares = self._schedule_running(self.load.budget_tokens, [])
        if not self.preempted:
            budget = self._admit(budget, shares)
        elif self.waiting:
            self.limit = (Limit.preempted, self.waiting[0].number, NEVER, NEVER, NEVER)
        self._record_step(budget, shares)
        self._update(shares)

    def _schedule_running(self, budget: int, shares: list[tuple[Request, int, int]]):
        for request in list(self.running):
            if request not in self.running or not budget:
                continue
            tokens = min(request.tokens - request.computed_tokens, budget)
            need = -(-(request.computed_tokens + tokens) // BLOCK_TOKENS) - len(request.blocks)
            while need > len(self.free) and self.running[-1] is not request:
                victim = self.running[-1]
                shares[:] = [share for share in shares if share[0] is not victim]
                self._preempt(victim)
            if need > len(self.free):
                self._preempt(request)
                continue
            self._allocate(request, need, tokens)
            shares.append((request, tokens, need))
            budget -= tokens
        return budget, shares

    def _admit(self, budget: int, shares: list[tuple[Request, int, int]]) -> int:
        while self.waiting:
            head = self.waiting[0]
            if len(self.running) >= self.load.max_seqs or not budget:
                reason = Limit.token_budget if not budget else Limit.max_num_seqs
                self.limit = (reason, head.number, NEVER, NEVER, NEVER)
                break
            hits = self._lookup(head)
            hit_tokens = len(hits) * BLOCK_TOKENS
            tokens = min(head.tokens - hit_tokens, budget)
            need = -(-(hit_tokens + tokens) // BLOCK_TOKENS) - len(hits)
            available = len(self.free) - sum(1 for block in hits if not self.ref_count[block])
            admitted = need <= available
            found = (head.tokens, hit_tokens, NEVER, len(hits), admitted, head.lookups, head.preempted, 1, NEVER)
            self.emit("prefix_lookup", self.now_ns, self.step, head.number, *found)
            head.lookups += 1
            if not admitted:
                self.limit = (Limit.kv_insufficient, head.number, need, available, 0)
                break
            self._start(self.waiting.popleft(), hits)
            self._allocate(head, need, tokens, TableOp.set)
            shares.append((head, tokens, need))
            budget -= tokens
        return budget

    def _hash_at(self, request: Request, position: int) -> int:
        """Blocks of the system prompt are the same for all sessions, later ones for all turns of a session."""
        return position + 1 + (request.session << 10 if position >= self.load.system_blocks else 0)

    def _lookup(self, request: Request) -> list[int]:
        hits = []
        for position in range((request.tokens - 1) // BLOCK_TOKENS):
            block = self.block_of.get(self._hash_at(request, position))
            if block is None:
                break
            hits.append(block)
        return hits

    def _start(self, request: Request, hits: list[int]) -> None:
        for position, block in enumerate(hits):
            self.free.pop(block, None)
            self.ref_count[block] += 1
            self._block(block, BlockOp.hit, request)
            self.emit(
                "block_table",
                self.step,
                request.number,
                0,
                TableOp.append if position else TableOp.set,
                position,
                block,
            )
        request.blocks = list(hits)
        request.cached_blocks = len(hits)
        request.computed_tokens = len(hits) * BLOCK_TOKENS
        op = RequestOp.resume if request.preempted else RequestOp.schedule
        self._life(request, op, hit_tokens=request.computed_tokens)
        self.running.append(request)

    def _allocate(self, request: Request, need: int, tokens: int, op: TableOp = TableOp.append) -> None:
        for _ in range(need):
            block = next(iter(self.free))
            del self.free[block]
            self._evict(block)
            self.ref_count[block] = 1
            self._block(block, BlockOp.allocate, request)
            position = len(request.blocks)
            op = TableOp.append if position else op
            self.emit("block_table", self.step, request.number, 0, op, position, block)
            request.blocks.append(block)
        for position in range(request.cached_blocks, (request.computed_tokens + tokens) // BLOCK_TOKENS):
            number, block = self._hash_at(request, position), request.blocks[position]
            if number not in self.block_of:
                self.block_of[number] = block
                self.hash_of[block] = number
                self._block(block, BlockOp.cache, request, number)
            request.cached_blocks = position + 1

    def _evict(self, block: int) -> None:
        number = self.hash_of.pop(block, 0)
        if number:
            self.block_of.pop(number, None)
            self.emit("block_event", self.now_ns, self.step, block, BlockOp.evict, 0, 0, number, 0, 0)

    def _release(self, request: Request) -> None:
        for block in reversed(request.blocks):
            self.ref_count[block] -= 1
            self._block(block, BlockOp.free, request)
            if not self.ref_count[block]:
                self.free[block] = None
        request.blocks = []

    def _preempt(self, request: Request) -> None:
        self.preempted += 1
        self._life(request, RequestOp.preempt)
        self._release(request)
        request.recompute_until = request.computed_tokens
        request.computed_tokens = request.cached_blocks = request.lookups = 0
        request.preempted = True
        self.running.remove(request)
        self.waiting.appendleft(request)

    def _record_step(self, budget: int, shares: list[tuple[Request, int, int]]) -> None:
        counts = dict.fromkeys(Phase, 0)
        tokens_of = dict.fromkeys(Phase, 0)
        for request, tokens, new_blocks in shares:
            phase = self._phase(request, tokens)
            counts[phase] += 1
            tokens_of[phase] += tokens
            share = (phase, tokens, request.computed_tokens, new_blocks)
            self.emit("step_request", self.step, request.number, *share)
        by_phase = [value for phase in Phase for value in (counts[phase], tokens_of[phase])]
        self.now_ns += 120_000 + 1_500 * len(shares)
        free = len(self.free)
        pool = (free, self.blocks - free, len(self.hash_of), self.preempted)
        queues = (self.step, len(self.running), len(self.waiting))
        self.emit(
            "step_schedule",
            self.start_ns,
            self.now_ns,
            *queues,
            *by_phase,
            self.load.budget_tokens,
            budget,
            *pool,
            *self.limit,
        )

    @staticmethod
    def _phase(request: Request, tokens: int) -> Phase:
        if request.preempted and request.computed_tokens < request.recompute_until:
            return Phase.resumed
        left = request.prompt_tokens - request.computed_tokens
        if left <= 0:
            return Phase.decode
        return Phase.prefill if tokens >= left else Phase.chunked_prefill

    def _update(self, shares: list[tuple[Request, int, int]]) -> None:
        scheduled = sum(tokens for _, tokens, _ in shares)
        begun_ns = self.now_ns + 30_000
        self.now_ns += self.load.step_ns + self.load.token_ns * scheduled
        graph = GraphMode.full if scheduled == len(shares) else GraphMode.piecewise
        self.emit("forward", begun_ns, self.now_ns - 20_000, 1, self.step, scheduled, len(shares), graph)
        update_ns, outputs, finished = self.now_ns, 0, 0
        for request, tokens, _ in shares:
            request.computed_tokens += tokens
            if request.computed_tokens < request.tokens:
                continue
            outputs += 1
            request.output_tokens += 1
            if request.output_tokens == 1:
                self._life(request, RequestOp.first_token)
            if request.output_tokens >= request.max_tokens:
                finished += 1
                self._finish(request)
        self.now_ns += 80_000 + 2_000 * len(shares)
        self.emit("step_update", update_ns, self.now_ns, self.step, outputs, finished)

    def _finish(self, request: Request) -> None:
        self._life(request, RequestOp.finish, reason=FinishReason.length)
        self._release(request)
        self.running.remove(request)
        longer = request.tokens + self.random.randint(*self.load.added_tokens)
        if request.turn < 4 and longer < MAX_MODEL_TOKENS - 100:
            think_ns = self.random.randint(*self.load.think_ms) * 1_000_000
            self._turn(request.session, request.turn + 1, longer, self.now_ns + think_ns)

    def _block(self, block: int, op: BlockOp, request: Request, number: int = 0) -> None:
        self.emit("block_event", self.now_ns, self.step, block, op, self.ref_count[block], request.number, number, 0, 0)

    def _life(self, request: Request, op: RequestOp, reason: int = 0, hit_tokens: int = NEVER) -> None:
        counts = (request.computed_tokens, request.output_tokens, hit_tokens, NEVER, len(request.blocks))
        self.emit("request_event", self.now_ns, self.step, request.number, op, reason, *counts)
