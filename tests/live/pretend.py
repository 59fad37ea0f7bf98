"""A pretended engine that records requests, steps and blocks as vLLM's hooks do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvtrace.capture.limits import Limits
from kvtrace.capture.recorder import Recorder
from kvtrace.events import EVENTS, BlockOp, FinishReason, Limit, Phase, RequestOp
from kvtrace.format.manifest import Manifest

BLOCK_TOKENS = 16
BLOCKS = 100
STEP_NS = 10_000_000
EVICTED_AT_ONCE = 2


def begin(run: Path, started_ns: int = 1) -> None:
    """Make a run directory as `kvtrace record` does."""
    run.mkdir(exist_ok=True)
    Manifest(["vllm", "serve"], started_ns).write(run)


def end(run: Path, exit_code: int = 0) -> None:
    """Note that the command has ended."""
    Manifest(["vllm", "serve"], 1, ended_ns=2, exit_code=exit_code).write(run)


@dataclass
class Request:
    """A request of the engine; hashes are those of its prompt's full blocks."""

    name: str
    number: int
    prompt_tokens: int
    hashes: Sequence[int]
    blocks: int = 0
    computed: int = 0
    output: int = 0
    hits: int = 0


@dataclass
class Expected:
    """Counts of what was recorded, made apart from the code under test."""

    queried: int = 0
    hits: int = 0
    output: int = 0
    finished: int = 0
    preempted: int = 0
    evicted: int = 0
    steps: int = 0
    prompt: int = 0


@dataclass
class PretendEngine:
    """Records an engine; each method records what vLLM's hooks would at that moment."""

    run: Path
    model: str = "secret-model"
    limits: Limits | None = None
    segment_bytes: int | None = None
    expected: Expected = field(default_factory=Expected)

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.run, self.limits, largest_segment_bytes=self.segment_bytes)
        self.now = time.monotonic_ns()
        self.step = 0
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.cached: dict[int, None] = {}
        self.recorder.note("role", role="engine")
        self.recorder.note(
            "engine", model=self.model, blocks=BLOCKS, block_size_tokens=BLOCK_TOKENS, hash_block_tokens=BLOCK_TOKENS
        )
        self.recorder.open()

    def emit(self, event: str, **values: Any) -> None:
        """Append a record; what is not said is 0."""
        fields = dict.fromkeys((each.name for each in EVENTS[event].fields), 0) | values
        self.recorder.stream(EVENTS[event])(*fields.values())

    def queue(self, name: str, prompt_tokens: int, hashes: Sequence[int], session: str = "") -> Request:
        """A request arrives."""
        request = Request(name, self.recorder.intern(name), prompt_tokens, hashes)
        clock_offset_ns = time.time_ns() - time.monotonic_ns()
        self.emit(
            "request_queued", time_ns=self.now, request=request.number, arrival_ns=self.now + clock_offset_ns,
            prompt_tokens=prompt_tokens, session=self.recorder.intern(session) if session else 0, turn=-1,
        )  # fmt: skip
        self.waiting.append(request)
        return request

    def run_step(self, admit: int = 0, preempt: Request | None = None, evict: int = 0) -> None:
        """A step: preempts, evicts, admits, gives each running request a token, ends nothing."""
        self.step += 1
        self.now += STEP_NS
        if preempt is not None:
            self._preempt(preempt)
        for block_hash in list(self.cached)[:evict]:
            self._evict(block_hash)
        admitted = [self._admit(self.waiting.pop(0)) for _ in range(min(admit, len(self.waiting)))]
        for request in self.running:
            self._share(request, request in admitted)
        self._schedule(1 if preempt else 0)
        self._update()

    def finish(self, request: Request, reason: FinishReason = FinishReason.length) -> None:
        """A request ends."""
        self.running.remove(request)
        self.emit(
            "request_event", time_ns=self.now, step=self.step, request=request.number, op=RequestOp.finish,
            reason=reason, output_tokens=request.output, blocks=request.blocks,
        )  # fmt: skip
        self.expected.finished += 1

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.waiting.insert(0, request)
        self._event(request, RequestOp.preempt, blocks=request.blocks)
        request.blocks = request.computed = 0
        self.expected.preempted += 1

    def _event(self, request: Request, op: RequestOp, **values: Any) -> None:
        self.emit("request_event", time_ns=self.now, step=self.step, request=request.number, op=op, **values)

    def _evict(self, block_hash: int) -> None:
        self.cached.pop(block_hash)
        self.emit("block_event", time_ns=self.now - 1, step=self.step, op=BlockOp.evict, block_hash=block_hash)
        self.expected.evicted += 1

    def _admit(self, request: Request) -> Request:
        resumed = request.output > 0
        found = next((at for at, each in enumerate(request.hashes) if each not in self.cached), len(request.hashes))
        tokens = request.prompt_tokens + request.output
        request.hits = request.computed = min(found, (tokens - 1) // BLOCK_TOKENS) * BLOCK_TOKENS
        self.emit(
            "prefix_lookup", time_ns=self.now, step=self.step, request=request.number, queried_tokens=tokens,
            local_hit_tokens=request.hits, external_hit_tokens=-1, admitted=True, resumed=resumed, enabled=True,
        )  # fmt: skip
        first = request.hits // BLOCK_TOKENS
        for position, block_hash in enumerate(request.hashes[first:], first):
            self.emit("request_hash", step=self.step, request=request.number, position=position, block_hash=block_hash)
        op = RequestOp.resume if resumed else RequestOp.schedule
        self._event(request, op, local_cached_tokens=request.hits, external_cached_tokens=-1)
        for block_hash in request.hashes[first:]:
            if block_hash not in self.cached:
                self.cached[block_hash] = None
                self.emit("block_event", time_ns=self.now + 1, step=self.step, op=BlockOp.cache, block_hash=block_hash)
        if not resumed:
            self.expected.queried += tokens
            self.expected.hits += request.hits
        self.running.append(request)
        return request

    def _share(self, request: Request, admitted: bool) -> None:
        tokens = request.prompt_tokens + request.output - request.computed
        needed = -(-(request.computed + tokens) // BLOCK_TOKENS)
        phase = (Phase.resumed if request.output else Phase.prefill) if admitted else Phase.decode
        self.emit(
            "step_request", step=self.step, request=request.number, phase=phase, scheduled_tokens=tokens,
            computed_tokens=request.computed, new_blocks=needed - request.blocks,
        )  # fmt: skip
        request.computed += tokens
        request.blocks = needed

    def _schedule(self, preempted: int) -> None:
        used = sum(request.blocks for request in self.running)
        self.emit(
            "step_schedule", start_ns=self.now, scheduled_ns=self.now, step=self.step, running=len(self.running),
            waiting=len(self.waiting), used_blocks=used, free_blocks=BLOCKS - used,
            cached_blocks=len(self.cached), preempted_requests=preempted, decode_tokens=len(self.running),
            admission_limit=Limit.kv_insufficient if self.waiting else Limit.none,
        )  # fmt: skip
        self.expected.steps += 1

    def _update(self) -> None:
        for request in self.running:
            if not request.output:
                self.expected.prompt += request.prompt_tokens
                self.emit(
                    "request_event", time_ns=self.now + STEP_NS // 2, step=self.step, request=request.number,
                    op=RequestOp.first_token, output_tokens=1,
                )  # fmt: skip
            request.output += 1
        self.expected.output += len(self.running)
        self.emit(
            "step_update", update_ns=self.now + STEP_NS // 2, end_ns=self.now + STEP_NS // 2, step=self.step,
            output_tokens=len(self.running),
        )  # fmt: skip


def work(engine: PretendEngine, requests: int, first: int = 0) -> None:
    """Run some requests to their end: each shares its prefix with the one before, and is preempted once."""
    for number in range(first, first + requests):
        shared = 1000 + number // 2
        request = engine.queue(
            f"secret-request-{number}", 40, [shared, 10_000 + number], f"secret-session-{number % 3}"
        )
        engine.run_step(admit=1)
        engine.run_step(preempt=request)
        engine.run_step(admit=1, evict=EVICTED_AT_ONCE if number % 5 == 4 else 0)
        engine.finish(request)
