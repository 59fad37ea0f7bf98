"""Compares a replay with the recording it comes from: block for block, step for step, and in latencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvtrace.queries import Trace

QUANTILES = (50, 90, 99)
LATENCIES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "request": "request",
    "job": "job",
}
"""Keys and names: to the first token, per further token, of whole requests and of whole sessions, all in ms."""


@dataclass
class Outcome:
    """Figures of a run, recorded or replayed.

    Attributes:
        latency_ms: By key of `LATENCIES`: mean, then the `QUANTILES`.
        span_s: From the first arrival to the last end, s.
    """

    steps: int
    hit_tokens: int
    prompt_tokens: int
    evictions: int
    preemptions: int
    output_tokens: int
    span_s: float
    latency_ms: dict[str, list[float]] = field(default_factory=dict)

    @property
    def hit_share(self) -> float:
        """Share of prompt tokens that the prefix cache supplied, tiers included."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second."""
        return self.output_tokens / self.span_s if self.span_s else 0.0


@dataclass
class Agreement:
    """How far a replay repeats its recording.

    Attributes:
        identical_steps: Share of the recorded steps whose requests and tokens are the same.
        identical_blocks: Share of the recorded block operations that are the same, in their order.
        departs: The first difference in words; None if there is none.
    """

    identical_steps: float
    identical_blocks: float
    departs: str | None


def outcome(path: Path, engine_id: int | None = None) -> Outcome:
    """Figures of a trace, of one engine of it if given."""
    where = f"engine_id = {engine_id}" if engine_id is not None else "true"
    with Trace(path) as trace:
        steps, evictions = trace.sql(
            f"SELECT (SELECT count(*) FROM step WHERE {where}) s, (SELECT count(*) FROM block_event "
            f"WHERE op = 'evict' AND pool = 0 AND {where}) e",
            format="arrow",
        ).to_pylist()[0].values()  # fmt: skip
        table = trace.sql(
            "SELECT coalesce(arrival_ns, queued_ns) arrival, first_token_ns first, finished_ns ended, "
            "prompt_tokens prompt, "
            "coalesce(output_tokens, 0) output, coalesce(local_cached_tokens, 0) + coalesce(external_cached_tokens, 0) "
            f"hit, coalesce(preemptions, 0) preempted, session, finish_reason::VARCHAR reason FROM request "
            f"WHERE {where} AND queued_ns IS NOT NULL",
            format="arrow",
        )
    rows = table.to_pylist()
    ended = [row for row in rows if row["ended"] is not None]
    whole = [row for row in ended if row["reason"] in ("stop", "length")]
    ttft = [(row["first"] - row["arrival"]) / 1e6 for row in rows if row["first"] is not None]
    tpot = [(row["ended"] - row["first"]) / 1e6 / (row["output"] - 1) for row in whole if row["output"] > 1]
    request = [(row["ended"] - row["arrival"]) / 1e6 for row in whole]
    jobs: dict[str, list[int]] = {}
    for row in ended:
        if row["session"] is not None:
            jobs.setdefault(row["session"], []).extend((row["arrival"], row["ended"]))
    job = [(max(times) - min(times)) / 1e6 for times in jobs.values()]
    values = {"ttft": ttft, "tpot": tpot, "request": request, "job": job}
    span = max((row["ended"] for row in ended), default=0) - min((row["arrival"] for row in ended), default=0)
    return Outcome(
        steps,
        sum(row["hit"] for row in rows),
        sum(row["prompt"] for row in rows),
        evictions,
        sum(row["preempted"] for row in rows),
        sum(row["output"] for row in rows),
        span / 1e9,
        {key: summary(each) for key, each in values.items() if each},
    )


def summary(values: Sequence[float]) -> list[float]:
    """Mean and `QUANTILES` of latencies."""
    return [float(np.mean(values)), *map(float, np.percentile(values, QUANTILES))]


def agreement(recorded: Path, replayed: Path, engine_id: int) -> Agreement:
    """Compare a replay with recorded times step for step with its recording."""
    with Trace(recorded) as trace:
        steps, blocks = _shares(trace, f"engine_id = {engine_id}"), _operations(trace, f"engine_id = {engine_id}")
    with Trace(replayed) as trace:
        other_steps, other_blocks = _shares(trace, "true"), _operations(trace, "true")
    same = sum(mine == other for mine, other in zip(steps, other_steps, strict=False))
    same_blocks = sum(mine == other for mine, other in zip(blocks, other_blocks, strict=False))
    return Agreement(
        same / len(steps) if steps else 1.0,
        same_blocks / len(blocks) if blocks else 1.0,
        _departure(steps, other_steps),
    )


Share = tuple[str, int, int, int]
"""A request's part of a step: its id, scheduled tokens, computed tokens before, new blocks."""


def _shares(trace: Trace, where: str) -> list[list[Share]]:
    """The parts of each step, in the order of the steps."""
    rows = trace.sql(
        "SELECT s.step, r.internal_id id, q.scheduled_tokens scheduled, q.computed_tokens computed, q.new_blocks new "
        f"FROM (SELECT step FROM step WHERE {where}) s LEFT JOIN (SELECT * FROM step_request WHERE {where}) q "
        "USING (step) LEFT JOIN request r USING (request) ORDER BY s.step, r.internal_id",
        format="arrow",
    )
    found: dict[int, list[Share]] = {}
    for step, *share in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        parts = found.setdefault(step, [])
        if share[0] is not None:
            parts.append((share[0], share[1], share[2], share[3]))
    return list(found.values())


def _operations(trace: Trace, where: str) -> list[tuple[Any, ...]]:
    """Block operations of the scheduler's pool, in the order of the manager's calls."""
    rows = trace.sql(
        "SELECT op::VARCHAR op, block_id, CASE WHEN op = 'cache' THEN block_hash END block_hash FROM block_event "
        f"WHERE pool = 0 AND {where} ORDER BY rowid",
        format="arrow",
    )
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def _departure(steps: list[list[Share]], other: list[list[Share]]) -> str | None:
    """The first step that differs, the request, and in what."""
    for number, (mine, theirs) in enumerate(zip(steps, other, strict=False), 1):
        if mine == theirs:
            continue
        recorded, replayed = {part[0]: part for part in mine}, {part[0]: part for part in theirs}
        for request in sorted({*recorded, *replayed}):
            ours, its = recorded.get(request), replayed.get(request)
            if ours == its:
                continue
            if its is None:
                return f"step {number}: request {request} was scheduled, in the replay it was not"
            if ours is None:
                return f"step {number}: request {request} is scheduled in the replay, it was not in the recording"
            names = ("tokens", "computed tokens", "new blocks")
            what = next(
                f"{name} {a}, replayed {b}" for name, a, b in zip(names, ours[1:], its[1:], strict=True) if a != b
            )
            return f"step {number}: request {request}: recorded {what}"
    if len(steps) != len(other):
        return f"step {min(len(steps), len(other)) + 1}: {len(steps)} steps were recorded, {len(other)} replayed"
    return None


def errors(recorded: Outcome, replayed: Outcome) -> dict[str, float]:
    """Relative error of each figure of a replay with the same settings: what a what-if must be expected to have.

    `hit_share` is a difference of shares, the others are (replayed - recorded) / recorded.
    """
    found = {"hit_share": replayed.hit_share - recorded.hit_share}
    for name in ("steps", "evictions", "preemptions"):
        mine, other = getattr(recorded, name), getattr(replayed, name)
        found[name] = (other - mine) / mine if mine else float(other != mine)
    if recorded.tokens_per_s:
        found["tokens_per_s"] = replayed.tokens_per_s / recorded.tokens_per_s - 1
    for key, mine in recorded.latency_ms.items():
        other = replayed.latency_ms.get(key)
        for name, a, b in zip(("mean", *(f"p{q}" for q in QUANTILES)), mine, other or mine, strict=True):
            found[f"{key}_{name}"] = b / a - 1 if a else 0.0
    return found
