"""A follower's state as metrics, in Prometheus' text format or in OpenMetrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kvtrace.events import FinishReason, Limit
from kvtrace.live.engine import EngineState
from kvtrace.live.follow import EngineFollower, Follower
from kvtrace.live.misses import Verdict
from kvtrace.live.window import EXPORTED_NS, Durations

OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[str, dict[str, str], float]
"""Suffix of the name, labels, value."""


@dataclass(frozen=True)
class Metric:
    """A metric family of engines: its name without `kvtrace_`, its type, its meaning, and its samples of one engine."""

    name: str
    type: str
    doc: str
    samples: Callable[[EngineFollower], Iterable[Sample]]


def _counter(name: str, doc: str, value: Callable[[EngineState], float]) -> Metric:
    return Metric(name, "counter", doc, lambda engine: [("_total", {}, value(engine.state))])


def _count(name: str, doc: str, counted: str) -> Metric:
    return _counter(name, doc, lambda state: state.totals[counted])


def _gauge(name: str, doc: str, value: Callable[[EngineState], float | None]) -> Metric:
    """A figure of the last step; there is none once the engine's process has ended."""

    def samples(engine: EngineFollower) -> Iterator[Sample]:
        if engine.alive and (known := value(engine.state)) is not None:
            yield "", {}, known

    return Metric(name, "gauge", doc, samples)


def _of_step(column: str) -> Callable[[EngineState], float | None]:
    def value(state: EngineState) -> float | None:
        return int(state.step[column]) if state.step is not None and state.step[column] >= 0 else None

    return value


def _usage(state: EngineState) -> float | None:
    used = _of_step("used_blocks")(state)
    return None if used is None or not state.blocks else used / state.blocks


def _by_member(name: str, doc: str, label: str, members: Iterable[Any], counts: str) -> Metric:
    members = list(members)

    def samples(engine: EngineFollower) -> Iterator[Sample]:
        for member in members:
            yield "_total", {label: member.name}, int(getattr(engine.state, counts)[member])

    return Metric(name, "counter", doc, samples)


def _histogram(name: str, doc: str, durations: Callable[[EngineState], Durations]) -> Metric:
    def samples(engine: EngineFollower) -> Iterator[Sample]:
        found = durations(engine.state)
        cumulative = found.counts.cumsum().tolist()
        for upper_ns, count in zip(EXPORTED_NS.tolist(), cumulative, strict=False):
            yield "_bucket", {"le": repr(upper_ns / 1e9)}, count
        yield "_bucket", {"le": "+Inf"}, cumulative[-1]
        yield "_count", {}, cumulative[-1]
        yield "_sum", {}, found.sum_ns / 1e9

    return Metric(name, "histogram", doc, samples)


def _dropped(engine: EngineFollower) -> Iterator[Sample]:
    for stream, count in engine.process.dropped().items():
        yield "_total", {"stream": stream}, count


METRICS = (
    _gauge("num_requests_running", "Requests in the running queue after the last step.", _of_step("running")),
    _gauge("num_requests_waiting", "Requests in all waiting queues after the last step.", _of_step("waiting")),
    _gauge("kv_cache_usage_ratio", "Blocks in use over all blocks, after the last step.", _usage),
    _gauge("kv_cache_blocks", "Blocks that requests can have.", lambda state: state.blocks or None),
    _gauge("kv_cache_used_blocks", "Blocks in use after the last step.", _of_step("used_blocks")),
    _gauge(
        "kv_cache_findable_blocks", "Blocks findable by hash after the last step, free ones included.",
        _of_step("cached_blocks"),
    ),
    _count("prefix_cache_lookups", "Admitted lookups in the prefix cache.", "lookups"),
    _count("prefix_cache_queries_tokens", "Tokens looked up at first admissions.", "queried_tokens"),
    _count("prefix_cache_hits_tokens", "Of them, found in the GPU's prefix cache.", "hit_tokens"),
    _count("external_prefix_cache_hits_tokens", "Of them, supplied by a KV connector.", "external_hit_tokens"),
    _count(
        "resumed_prefix_cache_queries_tokens", "Tokens looked up at admissions after a preemption.",
        "resumed_queried_tokens",
    ),
    _count("resumed_prefix_cache_hits_tokens", "Of them, found in the GPU's prefix cache.", "resumed_hit_tokens"),
    _by_member(
        "prefix_cache_lookups_by_verdict", "Admitted lookups by why the first block to compute was not cached.",
        "verdict", Verdict, "misses",
    ),
    _count("kv_cache_stored_blocks", "Blocks that became findable by their hash.", "stored_blocks"),
    _count("kv_cache_evicted_blocks", "Blocks whose cached content was evicted.", "evicted_blocks"),
    _count("num_preemptions", "Preempted requests.", "preemptions"),
    _count("steps", "Scheduler steps.", "steps"),
    _by_member(
        "admission_limited_steps", "Steps after which the queue's head waited, by why (inferred).",
        "reason", [limit for limit in Limit if limit is not Limit.none], "limits",
    ),
    _count("scheduled_tokens", "Tokens scheduled.", "scheduled_tokens"),
    _count("resumed_tokens", "Of them, computed again after a preemption.", "resumed_tokens"),
    _count("prompt_tokens", "Prompt tokens of requests that got a first token.", "prompt_tokens"),
    _count("generation_tokens", "Tokens generated.", "output_tokens"),
    _by_member("request_finished", "Requests that ended, by why.", "finished_reason", FinishReason, "finished"),
    _histogram(
        "time_to_first_token_seconds", "From arrival to the first token in the engine.",
        lambda state: state.time_to_first_token,
    ),
    _histogram(
        "inter_token_latency_seconds", "Between a request's steps that gave tokens.", lambda state: state.inter_token
    ),
    _histogram("request_queue_time_seconds", "From the queue to the first admission.", lambda state: state.queue_time),
    _histogram(
        "e2e_request_latency_seconds", "From arrival to the end in the engine.", lambda state: state.end_to_end
    ),
    Metric("dropped_records", "counter", "Records lost because recording had stopped, by stream.", _dropped),
    Metric(
        "torn_records", "counter", "Records passed over because they were never finished.",
        lambda engine: [("_total", {}, engine.unread()[0])],
    ),
    Metric(
        "skipped_segments", "counter", "Segments that the recording discarded before they were read.",
        lambda engine: [("_total", {}, engine.unread()[1])],
    ),
    Metric("engine_up", "gauge", "1 while the engine's process lives.", lambda engine: [("", {}, int(engine.alive))]),
    Metric(
        "last_record_age_seconds", "gauge", "Time since the engine's last record.",
        lambda engine: [("", {}, (engine.now_ns() - engine.state.last_ns) / 1e9)] if engine.state.last_ns else [],
    ),
)  # fmt: skip


def render(follower: Follower, *, open_metrics: bool, with_names: bool = False) -> str:
    """All metrics as text.

    Args:
        follower: The followed recording.
        open_metrics: Write OpenMetrics 1.0; else Prometheus' text format 0.0.4.
        with_names: Add the models' names; else there are counts only.
    """
    lines = list(_of_recording(follower, with_names))
    for metric in METRICS:
        lines += _head(metric.name, metric.type, metric.doc, open_metrics=open_metrics)
        for index, engine in enumerate(follower.engines):
            labels = {"engine": str(index)}
            for suffix, more, value in metric.samples(engine):
                lines.append(_line(f"{metric.name}{suffix}", labels | more, value))
    return "\n".join([*lines, *(["# EOF"] if open_metrics else []), ""])


def _of_recording(follower: Follower, with_names: bool) -> Iterator[str]:
    yield from _head("recording", "gauge", "1 while there is a recording that has not ended.", open_metrics=True)
    yield _line("recording", {}, int(follower.started_ns is not None and not follower.ended))
    yield from _head("recording_readable", "gauge", "0 while the recording cannot be read.", open_metrics=True)
    yield _line("recording_readable", {}, int(follower.problem is None))
    if with_names:
        yield from _head("engine_model", "gauge", "1, with the name of the engine's model.", open_metrics=True)
        for index, engine in enumerate(follower.engines):
            yield _line("engine_model", {"engine": str(index), "model_name": str(engine.state.facts.get("model"))}, 1)


def _head(name: str, kind: str, doc: str, *, open_metrics: bool) -> list[str]:
    """A family's lines; only in OpenMetrics a counter's family lacks the suffix of its sample."""
    family = f"kvtrace_{name}" + ("_total" if kind == "counter" and not open_metrics else "")
    return [f"# HELP {family} {doc}", f"# TYPE {family} {kind}"]


def _line(name: str, labels: dict[str, str], value: float) -> str:
    told = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    return f"kvtrace_{name}{{{told}}} {value}" if told else f"kvtrace_{name} {value}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
