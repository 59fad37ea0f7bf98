"""Names that scheduler traces give to things, and what kvtrace calls them. `docs/importers.md` lists them."""

from __future__ import annotations

from typing import Any

from kvtrace.events import Limit
from kvtrace.ingest.append import nanoseconds, real

KINDS = ("step_snapshot", "step_decision", "prefix_cache_lookup")
REQUEST_STATE = "request_state"
"""Lines of a study's second file: a request in a queue. They name no kind."""
KIND_NAMES = ("kind", "type", "event", "event_type", "record", "name", "msg")
_WRAPPERS = ("data", "payload", "fields", "attributes", "args", "body")

STEP = "step step_id step_idx step_index step_num step_number step_count scheduler_step iteration iter"
START = "start start_time start_ts step_start step_start_time ts_start schedule_start"
END = "end end_time end_ts step_end step_end_time ts_end"
TIME = "time ts timestamp t wall_time wall_ts now time_unix"
DURATION = "duration step_duration dur elapsed step_time latency step_latency"

COUNTS: dict[str, str] = {
    "running": "running num_running num_running_reqs num_running_requests running_reqs running_requests n_running "
    "running_count running_len queue_running_depth running_depth",
    "waiting": "waiting num_waiting num_waiting_reqs num_waiting_requests waiting_reqs waiting_requests n_waiting "
    "waiting_count waiting_len queue_waiting_depth waiting_depth pending",
    "prefill_requests": "prefill_requests num_prefill_requests num_prefill_reqs prefill_reqs num_prefill num_prefills "
    "batch_num_prefill_reqs",
    "prefill_tokens": "prefill_tokens num_prefill_tokens batch_num_prefill_tokens prefill_num_tokens",
    "chunked_prefill_requests": "chunked_prefill_requests num_chunked_prefill_requests num_chunked_prefill_reqs "
    "chunked_prefill_reqs",
    "chunked_prefill_tokens": "chunked_prefill_tokens num_chunked_prefill_tokens",
    "decode_requests": "decode_requests num_decode_requests num_decode_reqs decode_reqs num_decode num_decodes "
    "batch_num_decode_reqs",
    "decode_tokens": "decode_tokens num_decode_tokens batch_num_decode_tokens decode_num_tokens",
    "resumed_requests": "resumed_requests num_resumed num_resumed_reqs resumed_reqs resumed scheduled_resumed_reqs "
    "scheduled_resumed_req_ids",
    "new_requests": "scheduled_new_req_ids",
    "max_running": "max_num_running_reqs",
    "resumed_tokens": "resumed_tokens num_resumed_tokens recomputed_tokens",
    "total_tokens": "scheduled_tokens total_scheduled_tokens total_num_scheduled_tokens num_scheduled_tokens "
    "num_batched_tokens batch_scheduled_tokens total_tokens",
    "budget_tokens": "budget_tokens token_budget budget max_num_scheduled_tokens max_num_batched_tokens "
    "token_budget_total",
    "budget_left_tokens": "budget_left_tokens token_budget_left token_budget_remaining budget_left budget_remaining "
    "remaining_token_budget remaining_budget",
    "total_blocks": "total_blocks num_gpu_blocks num_blocks total_gpu_blocks kv_total_blocks kv_blocks_total "
    "kv_blocks_total_gpu blocks_total_gpu",
    "free_blocks": "free_blocks num_free_blocks free_gpu_blocks kv_free_blocks free_kv_blocks kv_blocks_free "
    "kv_blocks_free_gpu blocks_free_gpu",
    "used_blocks": "used_blocks num_used_blocks used_gpu_blocks kv_used_blocks used_kv_blocks kv_blocks_used",
    "cached_blocks": "cached_blocks num_cached_blocks kv_cached_blocks",
    "preempted_requests": "preempted_requests num_preempted num_preempted_reqs preempted_reqs preempted preemptions "
    "batch_num_preempted preempted_req_ids",
    "finished_requests": "finished_requests num_finished num_finished_reqs finished_reqs finished finished_req_ids "
    "batch_num_finished",
    "output_tokens": "output_tokens num_output_tokens generated_tokens sampled_tokens",
    "limit_need_blocks": "limit_need_blocks need_blocks blocks_needed num_blocks_needed "
    "required_blocks blocks_required",
    "limit_free_blocks": "limit_free_blocks blocks_available available_blocks",
}
TEXTS: dict[str, str] = {
    "limit": "admission_limit limit limiting_factor blocked_reason block_reason blocked_by admission_block_reason "
    "reason stop_reason",
    "limit_request": "limit_request blocked_request blocked_request_id blocked_req_id head_request head_request_id "
    "head_req_id",
}
LISTS: dict[str, str] = {
    "preempt": "preempted_requests preempted_reqs preempted preempted_req_ids preempted_request_ids",
    "finish": "finished_requests finished_reqs finished finished_req_ids finished_request_ids",
    "schedule": "scheduled_new_reqs scheduled_new_req_ids new_requests admitted admitted_requests "
    "admitted_req_ids new_req_ids",
    "resume": "scheduled_resumed_reqs scheduled_resumed_req_ids resumed_requests resumed_reqs resumed resumed_req_ids",
}
SNAPSHOT: dict[str, str] = {
    "cached_blocks": "gpu_cached_blocks",
    "host_free_blocks": "cpu_free_blocks",
    "host_total_blocks": "cpu_total_blocks",
    "host_cached_blocks": "cpu_cached_blocks",
    "pinned_jobs": "num_pinned",
    "pinned_blocks": "pinned_blocks",
}
"""Counts of a snapshot that only table scheduler_snapshot has."""
PINNED = "pinned_job_ids"
QUEUES: dict[str, tuple[str, str]] = {
    "running": ("running_req_ids", "running_job_ids"),
    "waiting": ("waiting_req_ids", "waiting_job_ids"),
}
"""The requests of each queue, and their jobs in the same order."""
SAID_ONCE = ("policy", "connector")
"""Facts of the engine that every object repeats."""
REPEATED = ("scheduled_running_req_ids",)
"""Fields that say what others say."""
TOTAL_HITS = "total_hit_tokens"
LOADS_ASYNC = "load_kv_async"
"""Fields of a lookup that only table scheduler_lookup has."""
PRIVATE = ("prompt_prefix", "prompt_suffix", "output_tail")
"""Token ids: never read, as all that ends in _text."""
STATE: dict[str, str] = {
    "priority": "priority", "max_tokens": "max_tokens", "prompt_tokens": "num_prompt_tokens", "tokens": "num_tokens",
    "output_tokens": "num_output_tokens", "computed_tokens": "num_computed_tokens",
    "cached_tokens": "num_cached_tokens", "external_computed_tokens": "num_external_computed_tokens",
    "preemptions": "num_preemptions", "hashed_blocks": "block_hashes_count",
}  # fmt: skip
STATE_FLAGS = ("is_prefill_chunk", "resumable")
SHARES = "num_scheduled_tokens scheduled_tokens scheduled scheduled_requests scheduled_reqs requests"
SHARE: dict[str, str] = {
    "request": "request_id req_id request rid id",
    "tokens": "scheduled_tokens num_scheduled_tokens num_tokens tokens num_new_tokens",
    "computed": "computed_tokens num_computed_tokens",
    "phase": "phase stage kind",
    "blocks": "new_blocks num_new_blocks",
}
LOOKUP: dict[str, str] = {
    "queried_tokens": "queried_tokens query_tokens num_query_tokens num_tokens prompt_tokens num_prompt_tokens "
    "prompt_len request_tokens queries",
    "local_hit_tokens": "local_hit_tokens num_local_hit_tokens local_cached_tokens num_new_local_computed_tokens "
    "num_local_computed_tokens gpu_hit_tokens hit_tokens num_hit_tokens num_cached_tokens cached_tokens "
    "num_computed_tokens hits",
    "external_hit_tokens": "external_hit_tokens num_external_hit_tokens external_cached_tokens "
    "num_external_computed_tokens num_external_tokens cpu_hit_tokens",
    "first_missing_block": "first_missing_block",
    "repeat": "repeat repeats",
    "prompt_tokens": "total_prompt_tokens",
    "turn": "turn turn_id turn_index turn_idx turn_number",
}
FLAGS = {
    "admitted": "admitted was_admitted",
    "resumed": "resumed preempted_before",
    "enabled": "enabled caching_enabled",
}
REQUEST = "request_id req_id request rid"
SESSION = "session session_id job job_id conversation_id chat_id program_id"
USAGE = "kv_cache_usage gpu_cache_usage kv_usage kv_usage_gpu_ratio usage_gpu_ratio cache_usage"

_UNITS_NS = {"_ns": 1.0, "_us": 1e3, "_ms": 1e6, "_s": 1e9, "_sec": 1e9, "_seconds": 1e9}


class Fields:
    """A trace object's fields, taken by any of a thing's names; what nobody took is unknown.

    Attributes:
        no_times: Fields that were taken for times and are none.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self._values: dict[str, Any] = {}
        self._taken: set[str] = set()
        self.no_times: list[str] = []
        for key, value in given.items():
            name = key.strip().lower().replace(".", "_").replace("-", "_")
            if isinstance(value, dict) and name in _WRAPPERS:
                self._values |= Fields(value)._values
            elif isinstance(value, dict) and name not in SHARES.split():
                inner = Fields(value)._values
                self._values |= {f"{name}_{key}": each for key, each in inner.items()}
            else:
                self._values[name] = value

    def take(self, names: str) -> Any:
        """The value of the first name there is; None if there is none."""
        for name in names.split():
            if self._values.get(name) is not None:
                self._taken.add(name)
                return self._values[name]
        return None

    def time_ns(self, names: str) -> int | None:
        """A time or duration, by the unit in the name; a point in time without one by its size."""
        for name in names.split():
            for ending, unit_ns in _UNITS_NS.items():
                if self._values.get(name + ending) is not None:
                    return self._time_ns(name + ending, unit_ns)
            if self._values.get(name) is not None:
                return self._time_ns(name, _unit_of(real(self._values[name])))
        return None

    def _time_ns(self, name: str, unit_ns: float) -> int | None:
        self._taken.add(name)
        found = nanoseconds(self._values[name], unit_ns)
        if found is None:
            self.no_times.append(name)
        return found

    def leave(self, *names: str) -> None:
        """Count fields as known."""
        self._taken.update(names)

    def unknown(self) -> list[str]:
        """The fields that were not taken."""
        return [name for name in self._values if name not in self._taken]


def _unit_of(value: float | None) -> float:
    """Seconds, unless UNIX seconds would be beyond the year 5000: then ms, us or ns of UNIX time."""
    for limit, unit_ns in ((1e11, 1e9), (1e14, 1e6), (1e17, 1e3)):
        if value is None or abs(value) < limit:
            return unit_ns
    return 1.0


def kind_of(given: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Return an object's kind and its fields; None if it is none of `KINDS`."""
    for name in KIND_NAMES:
        if given.get(name) in KINDS:
            return str(given[name]), {key: value for key, value in given.items() if key != name}
    if given.get("queue") in QUEUES and "req_id" in given:
        return REQUEST_STATE, given
    if len(given) == 1:
        [(name, value)] = given.items()
        if name in KINDS and isinstance(value, dict):
            return name, value
    return None, given


def limit_of(text: object) -> str:
    """The admission limit that a reason means."""
    words = str(text).lower()
    if words in ("", "none", "null", "ok", "admitted"):
        return Limit.none.name
    for part, limit in (
        ("preempt", Limit.preempted), ("budget", Limit.token_budget), ("max_num_batched", Limit.token_budget),
        ("seq", Limit.max_num_seqs), ("max_num_running", Limit.max_num_seqs), ("pause", Limit.paused),
        ("kv", Limit.kv_insufficient), ("block", Limit.kv_insufficient), ("memory", Limit.kv_insufficient),
        ("insufficient", Limit.kv_insufficient), ("alloc", Limit.kv_insufficient),
    ):  # fmt: skip
        if part in words:
            return limit.name
    return Limit.other.name


def phase_of(text: object) -> str | None:
    """The phase that a word means."""
    words = str(text).lower() if text is not None else ""
    for part, phase in (("chunk", "chunked_prefill"), ("resum", "resumed"), ("recomp", "resumed"),
                        ("prefill", "prefill"), ("decod", "decode"), ("generat", "decode")):  # fmt: skip
        if part in words:
            return phase
    return None
