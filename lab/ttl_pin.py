r"""A scheduler that keeps a job's KV while the job calls a tool: a subject to measure, not a product.

    vllm serve MODEL --scheduler-cls kvtrace.lab.ttl_pin.TTLPinScheduler \
        --additional-config '{"kvtrace_ttl_pin": {"threshold_s": 2.0, "ttl_s": 3.0}}'

A request is a turn of a job. Its client names the job and the tool that the turn ends with in `extra_args`
(`vllm_xargs` over HTTP): `kvtrace_session` and `kvtrace_tool`. When the turn ends and its tool is expected to take no
longer than `threshold_s`, the job's cached blocks are pinned for `ttl_s`. They are released when the job's next turn is
admitted (`used`), when the time is over (`expired`, at the next step: an engine without requests takes none), or, the
pin that ends last first, when requests wait and nothing at all could be scheduled (`forced`).

How long tools take is learnt from the time between a turn's end and the arrival of the job's next one; `tool_s` gives
times to begin with, and `unseen_tool_s` the time of a tool that was never seen.

Only vLLM imports this module.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from kvtrace.lab.tool_times import ToolTimes

_ENDED_BY_ITSELF = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")
_ADMISSIBLE = ("WAITING", "PREEMPTED")


class Pin(NamedTuple):
    """Blocks kept for a job. `end` is on the monotonic clock, s."""

    job: str
    blocks: list[Any]
    end: float


class TTLPinScheduler(Scheduler):  # type: ignore[misc]
    """vLLM's scheduler, and pins. Makes an asynchronous one where the engine schedules ahead of its results."""

    def __new__(cls, *args: Any, **kwargs: Any) -> TTLPinScheduler:
        """The kind of scheduler the engine's configuration needs."""
        config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
        ahead = bool(config.scheduler_config.async_scheduling) and not issubclass(cls, AsyncScheduler)
        made: TTLPinScheduler = super().__new__(_ahead_of_results(cls) if ahead else cls)
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        additional = self.vllm_config.additional_config
        options = additional.get("kvtrace_ttl_pin", {}) if isinstance(additional, dict) else {}
        self.threshold_s = float(options.get("threshold_s", 2.0))
        self.ttl_s = float(options.get("ttl_s", self.threshold_s))
        self.tool_times = ToolTimes(options.get("tool_s", {}), float(options.get("unseen_tool_s", 1.0)))
        self.pinned_requests: dict[str, Pin] = {}
        self._calling: dict[str, tuple[str, float]] = {}  # jobs at a tool: which, and since when

    def add_request(self, request: Any) -> None:
        """Learn how long the tool took whose result this turn brings."""
        job, _ = _tags(request)
        tool, since = self._calling.pop(job, ("", 0.0))
        if tool:
            self.tool_times.saw(tool, time.monotonic() - since)
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule a step between pins that end before it and because of it."""
        now = time.monotonic()
        for request_id in [request_id for request_id, pin in self.pinned_requests.items() if pin.end <= now]:
            self.unpin_request(request_id, "expired")
        output = super().schedule(*args, **kwargs)
        if self.pinned_requests:
            self._release_used(output)
            if output.total_num_scheduled_tokens == 0:
                self._make_room()
        return output

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        job, tool = _tags(request)
        if job and tool and request.status.name in _ENDED_BY_ITSELF:
            self._calling[job] = tool, time.monotonic()
            if self.tool_times.estimate(tool) <= self.threshold_s:
                self.pin_request(request, self.ttl_s)
        return super()._free_request(request, *args, **kwargs)

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """Reset; pinned blocks would prevent it."""
        for request_id in list(self.pinned_requests):
            self.unpin_request(request_id, "forced")
        return bool(super().reset_prefix_cache(*args, **kwargs))

    def pin_request(self, request: Any, seconds: float) -> None:
        """Keep a request's cached blocks for so long, with references of their own."""
        pool = self.kv_cache_manager.block_pool
        ids = [block for group in self.kv_cache_manager.get_block_ids(request.request_id) for block in group]
        blocks = [pool.blocks[block] for block in ids if pool.blocks[block].block_hash is not None]
        if blocks:
            pool.touch(blocks)
            self.pinned_requests[request.request_id] = Pin(_tags(request)[0], blocks, time.monotonic() + seconds)

    def unpin_request(self, request_id: str, reason: str) -> None:
        """Let a request's blocks go; they stay cached until they are needed."""
        pin = self.pinned_requests.pop(request_id)
        self.kv_cache_manager.block_pool.free_blocks(pin.blocks[::-1])  # the prefix's beginning is evicted last

    def _release_used(self, output: Any) -> None:
        """The blocks of jobs whose next turn was admitted are held by that turn now."""
        admitted = {_tags(self.requests[data.req_id])[0] for data in output.scheduled_new_reqs}
        for request_id in [id_ for id_, pin in self.pinned_requests.items() if pin.job in admitted]:
            self.unpin_request(request_id, "used")

    def _make_room(self) -> None:
        """Nothing could be scheduled: release pins, latest end first, until the first that waits fits."""
        waiting = [request for request in self.requests.values() if request.status.name in _ADMISSIBLE]
        if not waiting:
            return
        first = min(waiting, key=lambda request: request.priority)  # all alike but with vLLM's priority policy
        need = -(-first.num_tokens // self.block_size)
        while self.pinned_requests and self.kv_cache_manager.block_pool.get_num_free_blocks() < need:
            latest = max(self.pinned_requests, key=lambda request_id: self.pinned_requests[request_id].end)
            self.unpin_request(latest, "forced")


_asynchronous: dict[type, type] = {}


def _ahead_of_results(kind: type[TTLPinScheduler]) -> type[TTLPinScheduler]:
    """The class with vLLM's asynchronous scheduler behind it."""
    if kind not in _asynchronous:
        _asynchronous[kind] = type(f"Async{kind.__name__}", (kind, AsyncScheduler), {"__module__": kind.__module__})
    return _asynchronous[kind]


def _tags(request: Any) -> tuple[str, str]:
    """The job and the tool a client named, or empty strings."""
    extra = getattr(request.sampling_params, "extra_args", None) or {}
    return str(extra.get("kvtrace_session", "")), str(extra.get("kvtrace_tool", ""))
