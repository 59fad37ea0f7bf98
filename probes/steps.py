"""Scheduler steps: what each one chose, and what it left waiting and why."""

from __future__ import annotations

from kvtrace.capture import _native
from kvtrace.events import (
    BLOCK_TABLE,
    STEP_REQUEST,
    STEP_SCHEDULE,
    GroupKind,
    Limit,
    Phase,
    RequestOp,
)
from kvtrace.probes.engine import NOT_ADMITTED, STEP_ATTRIBUTE, Engine, LiveRequest
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Hook, Need
from kvtrace.probes.lookups import Lookups
from kvtrace.probes.nvtx import Ranges
from kvtrace.probes.request_events import RequestEvents
from kvtrace.probes.vllm_symbols import (
    BLOCK_POOL,
    CACHED_REQUESTS,
    NEW_REQUEST,
    REQUEST,
    REQUEST_QUEUE,
    SCHEDULER,
    SCHEDULER_OUTPUT,
)
from kvtrace.probes.vllm_types import Request, Scheduler

_PAUSED = "that admissions were paused"
_NOBODY_WAITS = int(Limit.none), 0, -1, -1, -1
"""The limit, whose it is, blocks needed, blocks free and blocks kept free."""
_BLOCKED = {
    "WAITING_FOR_REMOTE_KVS": Limit.remote_kv,
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": Limit.grammar,
    "WAITING_FOR_STREAMING_REQ": Limit.streaming_input,
}
"""By status."""
_PREFILL, _CHUNKED, _DECODE, _RESUMED = (int(phase) for phase in Phase)


class Steps:
    """Gives `schedule` its steps, and turns what it returns into records: `native/steps.c`, but for what is here.

    Attributes:
        before, after, record: What the hook on `schedule` does; `record` when the workers have their step.
    """

    def __init__(self, engines: Engines, lookups: Lookups, ranges: Ranges | None = None) -> None:
        packer = engines.recorder.packer
        self._lookups = lookups
        self._events = RequestEvents(engines.recorder)
        compiled = _native.Steps(
            packer(STEP_SCHEDULE),
            packer(STEP_REQUEST),
            packer(BLOCK_TABLE),
            engines.by_scheduler,
            STEP_ATTRIBUTE,
            None if ranges is None else ranges.begin_step,
            None if ranges is None else ranges.scheduled,
            self._settle,
            self._share,
            self._limit,
        )
        self.before, self.after, self.record = compiled.before, compiled.after, compiled.record

    def _settle(self, engine: Engine) -> None:
        settled = self._lookups.settle(engine, admitted=False)
        if settled is not None:
            self._lookups.record(settled)

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
        # Some of a hit may be computed again on purpose (bounded replay of a sliding window).
        begins = computed <= live.local_hit + live.external_hit if engine.follows_lookups else first
        return _PREFILL if whole and begins else _CHUNKED

    def _admitted(self, engine: Engine, start_ns: int, live: LiveRequest, request: Request, computed: int) -> None:
        live.decode_from = max(request.num_prompt_tokens, live.recompute_until)
        op = RequestOp.resume if live.preempted else RequestOp.schedule
        if op is RequestOp.schedule and engine.awaiting_first_token is not None:
            engine.awaiting_first_token[request.request_id] = request
        follows = engine.follows_lookups
        self._events.record(
            op,
            live,
            request,
            time_ns=start_ns,
            step=engine.step,
            computed_tokens=computed,
            local_cached_tokens=live.local_hit if follows else -1,
            external_cached_tokens=live.external_hit if follows else -1,
        )

    @staticmethod
    def _limit(engine: Engine, budget_left: int, waiting: int) -> tuple[int, int, int, int, int]:
        """Infer why the head of the queue has to wait, from the state that vLLM left: vLLM itself does not say."""
        if waiting < 0:
            return 0, 0, -1, -1, -1
        head = engine.head()
        if head is None:
            return _NOBODY_WAITS
        number = engine.request(head.request_id).number
        scheduler = engine.scheduler
        if engine.refused is not None and engine.refused[0] == head.request_id:
            if _awaits_state(engine):
                return Limit.state_pending, number, -1, -1, -1
            return Limit.kv_insufficient, number, *engine.refused[1:]
        if engine.preempted:
            return Limit.preempted, number, -1, -1, -1
        most = getattr(scheduler, "max_num_active_reqs", None) or scheduler.max_num_running_reqs
        paused_sessions = getattr(scheduler, "num_waiting_for_streaming_input", 0)  # they keep their places
        if len(scheduler.running) + paused_sessions >= most:
            return Limit.max_num_seqs, number, -1, -1, -1
        chunked = scheduler.scheduler_config.enable_chunked_prefill
        if budget_left <= 0 or (not chunked and head.num_tokens - head.num_computed_tokens > budget_left):
            return Limit.token_budget, number, -1, -1, -1
        if _holds_prefills(scheduler, head):
            return Limit.prefill_interval, number, -1, -1, -1
        if blocked := _blocked(engine, head):
            return blocked, number, -1, -1, -1
        paused = engine.optional.read(scheduler, "_pause_state", _PAUSED)
        if paused is None or not engine.follows_lookups:  # it may be that, or a refusal that nobody saw
            return 0, number, -1, -1, -1
        return (Limit.other if paused.name == "UNPAUSED" else Limit.paused), number, -1, -1, -1


def _blocked(engine: Engine, head: Request) -> Limit | None:
    """The reason for which vLLM skips a request before it asks for its blocks."""
    if reason := _BLOCKED.get(head.status.name):
        return reason
    if engine.deferred == (engine.step, head.request_id):
        return Limit.connector_deferred
    adapter, most = head.lora_request, getattr(getattr(engine.scheduler, "lora_config", None), "max_loras", 0)
    if adapter is None or not most:
        return None
    taken = {_adapter_of(request) for request in engine.scheduler.running} - {None}
    return Limit.max_loras if len(taken) >= most and _adapter_of(head) not in taken else None


def _adapter_of(request: Request) -> int | None:
    return getattr(request.lora_request, "lora_int_id", None)


def _awaits_state(engine: Engine) -> bool:
    """Tell whether the refusal is for a state that is stored in this step: vLLM then asks for more than there is."""
    needs, kinds = engine.group_needs, engine.group_kinds
    return len(needs) == len(kinds) and any(
        need > engine.block_pool.num_gpu_blocks and kind is GroupKind.state
        for need, kind in zip(needs, kinds, strict=True)
    )


def _holds_prefills(scheduler: Scheduler, head: Request) -> bool:
    """Tell whether the step held prefills for `prefill_schedule_interval`, without data parallelism (since vLLM 0.33).

    A step that held them does not count as one with prefill, and leaves `prefill_capacity_bound` as it was.
    """
    interval = getattr(scheduler, "local_prefill_interval", 1)
    if interval <= 1 or getattr(scheduler, "prefill_capacity_bound", False):
        return False
    since = getattr(scheduler, "num_executed_steps", 0) - getattr(scheduler, "last_prefill_step", 0)
    decoding = any(not getattr(request, "is_prefill_chunk", False) for request in scheduler.running)
    return 0 < since < interval and decoding and head.status.name in ("WAITING", "PREEMPTED")


def hooks(engines: Engines, lookups: Lookups, ranges: Ranges | None) -> list[Hook]:
    """The hook on `Scheduler.schedule`, and those that have what it chose recorded."""
    steps = Steps(engines, lookups, ranges)
    return [
        Hook(
            f"{SCHEDULER}.schedule",
            "steps and everything they hold, prefix lookups",
            before=steps.before,
            after=steps.after,
            later=steps.record,
            catches_up=True,
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
        # vLLM calls it when the workers have their step, and then waits for them.
        Hook(
            f"{SCHEDULER}.get_grammar_bitmask",
            "nothing; what a step chose is recorded before the next one",
            catches_up=True,
        ),
        Hook(
            f"{SCHEDULER}.finish_requests",
            "nothing, or how many requests a step left that others were aborted after",
            catches_up=True,
        ),
        # The last that an engine's process does before others learn that it failed, and may kill it.
        Hook(
            "vllm.v1.engine.core:EngineCoreProc._send_engine_dead",
            "the step that an engine failed in",
            catches_up=True,
        ),
    ]
