"""Scheduler steps: what each one chose, and what it left waiting and why."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kvtrace.capture.stream import compiled
from kvtrace.events import (
    BLOCK_TABLE,
    REQUEST_EVENT,
    STEP_REQUEST,
    STEP_SCHEDULE,
    Limit,
    Phase,
    RequestOp,
    TableOp,
)
from kvtrace.probes.engine import NOT_ADMITTED, STEP_ATTRIBUTE, Engine, LiveRequest
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need
from kvtrace.probes.lookups import Lookups
from kvtrace.probes.nvtx import Ranges
from kvtrace.probes.vllm_symbols import (
    BLOCK_POOL,
    CACHED_REQUESTS,
    NEW_REQUEST,
    REQUEST,
    REQUEST_QUEUE,
    SCHEDULER,
    SCHEDULER_OUTPUT,
)
from kvtrace.probes.vllm_types import Request

_PAUSED = "that admissions were paused"
_NOBODY_WAITS = int(Limit.none), 0, -1, -1
_PREFILL, _CHUNKED, _DECODE, _RESUMED = (int(phase) for phase in Phase)


State = tuple[Engine, int] | None
"""An engine, and when its `schedule` was entered."""


class Steps:
    """Gives `schedule` its steps, and turns what it returns into records.

    Attributes:
        before, after: What the hook on `schedule` does.
    """

    def __init__(self, engines: Engines, lookups: Lookups, ranges: Ranges | None = None) -> None:
        native, stream, packer = compiled(), engines.recorder.stream, engines.recorder.packer
        self._schedulers, self._ranges = engines.by_scheduler, ranges
        self._emit_step = stream(STEP_SCHEDULE)
        self._emit_shares = engines.recorder.columns(STEP_REQUEST)
        self._emit_table = engines.recorder.columns(BLOCK_TABLE)
        self._emit_request = stream(REQUEST_EVENT)
        self._lookups = lookups
        self.before: Callable[[Args, Kwargs], State] = self._before
        self.after: Callable[[State, Any, Args, Kwargs], None] = self._after
        if native is not None:
            packers = packer(STEP_SCHEDULE), packer(STEP_REQUEST), packer(BLOCK_TABLE)
            told = (None, None) if ranges is None else (ranges.begin_step, ranges.scheduled)
            found = self._settle, self._share, self._limit
            codes = TableOp.set, TableOp.append, Limit.none
            made = native.Steps(*packers, self._schedulers, STEP_ATTRIBUTE, *told, *found, *codes)
            self.before, self.after = made.before, made.after

    def _before(self, args: Args, kwargs: Kwargs) -> State:
        engine = self._schedulers.get(id(args[0]))
        if engine is None or engine.step < 0:
            return None
        start_ns = time.monotonic_ns()
        engine.depth += 1
        if engine.depth == 1:
            engine.step += 1
            engine.acting_step = engine.step
            engine.preempted = 0
            engine.refused = engine.lookup = None
            if self._ranges is not None:
                self._ranges.begin_step(engine, start_ns)
        return engine, start_ns

    def _after(self, state: State, output: Any, args: Args, kwargs: Kwargs) -> None:
        if state is None:
            return
        engine, start_ns = state
        engine.depth -= 1
        if engine.depth == 0 and engine.step > 0:
            setattr(output, STEP_ATTRIBUTE, (engine.pid, engine.step))
            self._scheduled(engine, start_ns, output)
            if self._ranges is not None:
                self._ranges.scheduled(engine)

    def _settle(self, engine: Engine) -> None:
        self._lookups.settle(engine, admitted=False)

    def _scheduled(self, engine: Engine, start_ns: int, output: Any) -> None:
        end_ns = time.monotonic_ns()
        if engine.lookup is not None:
            self._settle(engine)
        new_blocks = self._block_tables(engine, output)
        requests, tokens = self._shares(engine, start_ns, output, new_blocks)
        scheduler, block_pool = engine.scheduler, engine.block_pool
        budget = scheduler.max_num_scheduled_tokens
        left = budget - output.total_num_scheduled_tokens
        free = block_pool.get_num_free_blocks()
        waiting = engine.waiting()
        limit, head, need, free_then = self._limit(engine, left, waiting) if waiting else _NOBODY_WAITS
        self._emit_step(
            start_ns,
            end_ns,
            engine.step,
            len(scheduler.running),
            waiting,
            requests[_PREFILL],
            tokens[_PREFILL],
            requests[_CHUNKED],
            tokens[_CHUNKED],
            requests[_DECODE],
            tokens[_DECODE],
            requests[_RESUMED],
            tokens[_RESUMED],
            budget,
            left,
            free,
            block_pool.num_gpu_blocks - 1 - free,
            max(engine.pool.cached, -1),
            engine.preempted,
            limit,
            head,
            need,
            free_then,
        )

    def _block_tables(self, engine: Engine, output: Any) -> dict[str, int]:
        """Record what the step adds to block tables; blocks added by request id."""
        added: dict[str, int] = {}
        for data in output.scheduled_new_reqs:
            added[data.req_id] = self._table(engine, data.req_id, data.block_ids, TableOp.set)
        cached = output.scheduled_cached_reqs
        resumed = cached.resumed_req_ids
        for request_id, block_ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if block_ids:
                op = TableOp.set if request_id in resumed else TableOp.append
                added[request_id] = self._table(engine, request_id, block_ids, op)
        return added

    def _table(self, engine: Engine, request_id: str, block_ids: tuple[list[int], ...], op: TableOp) -> int:
        live, step, code = engine.request(request_id), engine.step, int(op)
        if op is TableOp.set or len(live.table) != len(block_ids):
            live.table = [0] * len(block_ids)
        for group, ids in enumerate(block_ids):
            first = live.table[group]
            live.table[group] = end = first + len(ids)
            self._emit_table(len(ids), step, live.number, group, code, list(range(first, end)), list(ids))
        return sum(map(len, block_ids))

    def _shares(
        self, engine: Engine, start_ns: int, output: Any, new_blocks: dict[str, int]
    ) -> tuple[list[int], list[int]]:
        """Record each request's share; requests and tokens by phase."""
        requests, tokens = [0] * 5, [0] * 5
        known, live_requests, step = engine.scheduler.requests, engine.requests, engine.step
        rows: list[tuple[int, int, int, int, int]] = []
        for request_id, scheduled in output.num_scheduled_tokens.items():
            computed = known[request_id].num_computed_tokens - scheduled
            live = live_requests.get(request_id)
            if live is not None and computed >= live.decode_from:
                number, phase = live.number, _DECODE
            else:
                number, phase = self._share(engine, start_ns, request_id, computed)
            requests[phase] += 1
            tokens[phase] += scheduled
            rows.append((number, phase, scheduled, computed, new_blocks.get(request_id, 0)))
        if rows:
            self._emit_shares(len(rows), step, *map(list, zip(*rows, strict=True)))
        return requests, tokens

    def _share(self, engine: Engine, start_ns: int, request_id: str, computed: int) -> tuple[int, int]:
        """The number and the phase of a request."""
        live = engine.request(request_id)
        phase = self._phase(engine, start_ns, live, engine.scheduler.requests[request_id], computed)
        return live.number, phase

    def _phase(self, engine: Engine, start_ns: int, live: LiveRequest, request: Request, computed: int) -> int:
        first = live.decode_from == NOT_ADMITTED
        if first:
            self._admitted(engine, start_ns, live, request, computed)
        if computed < live.recompute_until:
            return _RESUMED
        if computed >= live.decode_from:
            return _DECODE
        whole = request.num_computed_tokens >= request.num_prompt_tokens
        begins = computed == live.local_hit + live.external_hit if engine.follows_lookups else first
        return _PREFILL if whole and begins else _CHUNKED

    def _admitted(self, engine: Engine, start_ns: int, live: LiveRequest, request: Request, computed: int) -> None:
        live.decode_from = max(request.num_prompt_tokens, live.recompute_until)
        op = RequestOp.resume if live.preempted else RequestOp.schedule
        if op is RequestOp.schedule and engine.awaiting_first_token is not None:
            engine.awaiting_first_token[request.request_id] = request
        self._emit_request(
            start_ns,
            engine.step,
            live.number,
            op,
            0,
            computed,
            request.num_output_tokens,
            live.local_hit if engine.follows_lookups else -1,
            live.external_hit if engine.follows_lookups else -1,
            sum(live.table),
        )

    @staticmethod
    def _limit(engine: Engine, budget_left: int, waiting: int) -> tuple[int, int, int, int]:
        """Why the head of the queue has to wait: vLLM keeps that to itself, so it is inferred from what it left."""
        if waiting < 0:
            return 0, 0, -1, -1
        head = engine.head()
        if head is None:
            return _NOBODY_WAITS
        number = engine.request(head.request_id).number
        scheduler = engine.scheduler
        if engine.refused is not None and engine.refused[0] == head.request_id:
            return Limit.kv_insufficient, number, engine.refused[1], engine.refused[2]
        if engine.preempted:
            return Limit.preempted, number, -1, -1
        most = getattr(scheduler, "max_num_active_reqs", None) or scheduler.max_num_running_reqs
        if len(scheduler.running) >= most:
            return Limit.max_num_seqs, number, -1, -1
        chunked = scheduler.scheduler_config.enable_chunked_prefill
        if budget_left <= 0 or (not chunked and head.num_tokens - head.num_computed_tokens > budget_left):
            return Limit.token_budget, number, -1, -1
        paused = engine.lacks.read(scheduler, "_pause_state", _PAUSED)
        if paused is None or not engine.follows_lookups:  # it may be that, or a refusal that nobody saw
            return 0, number, -1, -1
        return (Limit.other if paused.name == "UNPAUSED" else Limit.paused), number, -1, -1


def hooks(engines: Engines, lookups: Lookups, ranges: Ranges | None) -> list[Hook]:
    """The hook on `Scheduler.schedule`."""
    steps = Steps(engines, lookups, ranges)
    return [
        Hook(
            f"{SCHEDULER}.schedule",
            "steps and everything they hold, prefix lookups",
            before=steps.before,
            after=steps.after,
            off=engines.off(Engine.without_steps),
            needs=(
                Need(SCHEDULER, "requests running max_num_scheduled_tokens max_num_running_reqs scheduler_config"),
                Need("vllm.config.scheduler:SchedulerConfig", "enable_chunked_prefill"),
                Need(SCHEDULER_OUTPUT, "scheduled_new_reqs scheduled_cached_reqs"),
                Need(SCHEDULER_OUTPUT, "num_scheduled_tokens total_num_scheduled_tokens"),
                Need(NEW_REQUEST, "req_id block_ids"),
                Need(CACHED_REQUESTS, "req_ids new_block_ids resumed_req_ids"),
                Need(REQUEST, "request_id num_computed_tokens num_prompt_tokens num_output_tokens num_tokens"),
                Need(BLOCK_POOL, "get_num_free_blocks num_gpu_blocks"),
                Need(REQUEST_QUEUE, "peek_request"),
                Need(SCHEDULER, "_pause_state", _PAUSED),
            ),
        ),
    ]
