"""A cell's results in figures: what the client saw in each phase, and what the trace says of the engine."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.format import layout
from kvtrace.format.jsonlines import read_json_lines
from kvtrace.ingest.run import ingest
from kvtrace.lab.cell import DRAWS, FACTS, load_cell
from kvtrace.lab.results import FIRST_PASSES, TENTHS, Phase, Result
from kvtrace.lab.sweep import RESULT, RUN, read_object
from kvtrace.queries import Trace
from kvtrace.queries.statistics import value_of
from kvtrace.queries.trace import TRACE_NAME

_PHASE = """
SELECT
    (SELECT count(*) FROM request_event WHERE op = 'preempt' AND time_ns {within}) AS preemptions,
    (SELECT count(*) FROM block_event WHERE op = 'evict' AND pool = 0 AND time_ns {within}) AS evicted_blocks,
    (SELECT sum(bytes)::BIGINT FROM transfer WHERE direction = 'load' AND submitted_ns {within}) AS load_bytes,
    (SELECT sum(bytes)::BIGINT FROM transfer WHERE direction = 'store' AND submitted_ns {within}) AS store_bytes,
    (SELECT sum(coalesce(device_ns, finished_ns - coalesce(started_ns, submitted_ns)))::DOUBLE FROM transfer
        WHERE direction = 'load' AND submitted_ns {within}) / nullif({end_ns} - {start_ns}, 0) AS load_share,
    (SELECT sum(coalesce(device_ns, finished_ns - coalesce(started_ns, submitted_ns)))::DOUBLE FROM transfer
        WHERE direction = 'store' AND submitted_ns {within}) / nullif({end_ns} - {start_ns}, 0) AS store_share,
    (SELECT avg(first_token_ns - queued_ns) / 1e6 FROM request WHERE queued_ns {within}) AS engine_ttft_ms
"""
_PASSES = """
SELECT
    count(*) AS passes,
    sum(scheduled_tokens) * 1e9 / nullif(sum(own_ns), 0) AS pass_tokens_per_s,
    sum(scheduled_tokens) FILTER (decode_tokens = 0) * 1e9 / nullif(sum(own_ns) FILTER (decode_tokens = 0), 0)
        AS prefill_tokens_per_s,
    sum(decode_tokens) FILTER (decode_tokens = scheduled_tokens) * 1e9
        / nullif(sum(own_ns) FILTER (decode_tokens = scheduled_tokens), 0) AS decode_tokens_per_s
FROM step JOIN step_time USING (engine_id, step) WHERE start_ns {within}
"""
_COSTS = """
SELECT
    sum(resumed_tokens)::DOUBLE AS recomputed_tokens,
    sum(added_ns * resumed_tokens / tokens) / 1e9 AS recomputing_s,
    (SELECT sum(device_ns) / 1e9 FROM transfer WHERE submitted_ns {within}) AS copying_s
FROM step LEFT JOIN step_time USING (engine_id, step)
WHERE scheduled_tokens > 0 AND start_ns {within}
"""
"""Tokens that preempted requests computed again, the wall time that they added to steps, and the time of copies."""

_FIRST_PASSES = """
SELECT scheduled_tokens AS tokens FROM step
WHERE scheduled_tokens > 0 AND start_ns {within} ORDER BY step LIMIT {passes}
"""
_OVER_TIME = """
WITH phase AS (
    SELECT * FROM step JOIN engine USING (engine_id) WHERE start_ns {within}
), shown AS (
    SELECT start_ns, lead(start_ns, 1, {end_ns}) OVER (ORDER BY start_ns) AS next_ns, running,
        100 * used_blocks / blocks AS kv_cache_percent
    FROM phase
), tenth AS (
    SELECT n, {start_ns} + n * ({end_ns} - {start_ns}) // {tenths} AS begin_ns,
        {start_ns} + (n + 1) * ({end_ns} - {start_ns}) // {tenths} AS end_ns
    FROM range({tenths}) AS tenths(n)
), part AS (
    SELECT n, running, kv_cache_percent, least(s.next_ns, t.end_ns) - greatest(s.start_ns, t.begin_ns) AS part_ns
    FROM tenth t LEFT JOIN shown s ON s.start_ns < t.end_ns AND s.next_ns > t.begin_ns
)
SELECT round(sum(kv_cache_percent * part_ns) / sum(part_ns), 3) AS kv_cache_percent,
    round(sum(running * part_ns) / sum(part_ns), 3) AS running
FROM part GROUP BY n ORDER BY n
"""
_STEPS = """
SELECT count(*), sum(tokens), sum(ms), sum(tokens * tokens), sum(tokens * ms), sum(ms * ms)
FROM (SELECT scheduled_tokens::DOUBLE AS tokens, own_ns / 1e6 AS ms FROM step JOIN step_time USING (engine_id, step)
    WHERE own_ns IS NOT NULL AND start_ns {within})
"""


def load_result(place: Path) -> Result:
    """The result of one cell."""
    told, facts = read_object(place / RESULT), read_object(place / FACTS)
    cell = load_cell(place)
    result = Result(cell, place, str(told["status"]), told.get("error"), float(told["seconds"]), facts)
    result.warnings += [f"{cell.label}: {warning}" for warning in facts.get("warnings", [])]
    if result.status != "ok":
        return result
    run = place / RUN
    records = list(read_json_lines(run / layout.CLIENT, result.warnings))
    workloads = json.loads((run / layout.WORKLOAD).read_text())
    result.phases = [
        _phase(workload, [record for record in records if record["phase"] == workload["phase"]])
        for workload in workloads
    ]
    before = Counter[str]()
    for phase in result.phases:
        phase.again = before[phase.workload["name"]]
        before[phase.workload["name"]] += 1
    drawn: list[dict[str, float]] = facts.get("predicted", {}).get(DRAWS, [])
    for phase in result.phases:  # a predicted cell has one
        phase.draws = {name: [each[name] for each in drawn if name in each] for name in (drawn[0] if drawn else ())}
    if cell.policy["name"] == "hf-generate":
        return result
    try:
        if result.trace is None:
            result.warnings += ingest(run).warnings
        _look_into_trace(result)
    except KvtraceError as error:
        result.warnings.append(f"{cell.label}: {error}")
    return result


def _phase(workload: dict[str, Any], records: list[dict[str, Any]]) -> Phase:
    done = [record for record in records if not record["error"]]
    jobs: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        jobs.setdefault(record["session"], []).append(record)
    completed = {
        session: turns
        for session, turns in jobs.items()
        if any(turn["last"] for turn in turns) and not any(turn["error"] for turn in turns)
    }
    jct_s = {
        session: (max(turn["last_token_ns"] for turn in turns) - min(turn["due_ns"] for turn in turns)) / 1e9
        for session, turns in completed.items()
    }
    ttft_ms = {session: value_of("mean", [_ttft_ms(turn) for turn in turns]) for session, turns in completed.items()}
    figures = _figures(records, done, jct_s)
    return Phase(workload, int(workload["phase"]), figures, jct_s, ttft_ms, _turns_ms(list(completed.values())))


def _turns_ms(jobs: list[list[dict[str, Any]]]) -> list[float]:
    lengths = sorted((len(turns) for turns in jobs), reverse=True)
    last = lengths[(len(lengths) - 1) // 2] if lengths else 0
    whole = [sorted(turns, key=lambda turn: turn["turn"]) for turns in jobs if len(turns) >= last]
    return [
        value_of("mean", [(turns[place]["last_token_ns"] - turns[place]["send_ns"]) / 1e6 for turns in whole])
        for place in range(last)
    ]


def _ttft_ms(record: dict[str, Any]) -> float:
    return float(record["first_token_ns"] - record["send_ns"]) / 1e6


def _figures(
    records: list[dict[str, Any]], done: list[dict[str, Any]], jct_s: dict[str, float]
) -> dict[str, float | None]:
    figures: dict[str, float | None] = {
        "requests": len(records),
        "failed": len(records) - len(done),
        "jobs_done": len(jct_s),
    }
    if not done:
        return figures
    seconds = (max(r["last_token_ns"] for r in done) - min(r["due_ns"] for r in records)) / 1e9
    outputs, prompts = sum(r["output_tokens"] for r in done), sum(r["prompt_tokens"] for r in done)
    cached = [r["cached_tokens"] for r in done]
    tpot = [
        (r["last_token_ns"] - r["first_token_ns"]) / 1e6 / (r["output_tokens"] - 1)
        for r in done
        if r["output_tokens"] > 1
    ]
    turns = [(r["last_token_ns"] - r["send_ns"]) / 1e6 for r in done]
    ttft = [_ttft_ms(r) for r in done]
    return figures | {
        "makespan_s": seconds,
        "output_tokens_per_s": outputs / seconds,
        "tokens_per_s": (outputs + prompts) / seconds,
        "requests_per_s": len(done) / seconds,
        "cached_share": None if None in cached else sum(cached) / prompts,
        "late_ms_max": max(r["send_ns"] - r["due_ns"] for r in done) / 1e6,
        **_spread("ttft_ms", ttft),
        "ttft_first_ms": _mean([_ttft_ms(r) for r in done if r["turn"] == 0]),
        "ttft_later_ms": _mean([_ttft_ms(r) for r in done if r["turn"] > 0]),
        **_spread("tpot_ms", tpot),
        **_spread("turn_ms", turns),
        **_spread("jct_s", list(jct_s.values())),
    }


def _mean(values: list[float]) -> float | None:
    return value_of("mean", values) if values else None


def _spread(name: str, values: list[float]) -> dict[str, float | None]:
    if not values:
        return {f"{name}_{which}": None for which in ("mean", "p50", "p99")}
    return {f"{name}_{which}": value_of(which, values) for which in ("mean", "p50", "p99")}


def _look_into_trace(result: Result) -> None:
    with Trace(result.place / RUN / TRACE_NAME) as trace:
        engines = trace.sql("SELECT * FROM engine", format="arrow").to_pylist()
        result.engine = engines[0] if engines else {}
        for phase, told in zip(result.phases, result.facts.get("phases", []), strict=False):
            window = int(told["start_ns"]), int(told["end_ns"])
            for asked in (_PHASE, _PASSES, _COSTS):
                (row,) = _asked(trace, asked, window)
                phase.figures |= row
            phase.first_passes_tokens = [int(row["tokens"]) for row in _asked(trace, _FIRST_PASSES, window)]
            tenths = _asked(trace, _OVER_TIME, window)
            phase.kv_cache_percent = [row["kv_cache_percent"] for row in tenths]
            phase.running = [row["running"] for row in tenths]
        phases = result.facts.get("phases") or [{"start_ns": 0, "end_ns": 0}]
        window = int(phases[0]["start_ns"]), int(phases[-1]["end_ns"])
        if len(result.phases) == 1:  # these queries look at a whole trace
            _look_at_one_workload(trace, result.phases[0])
        (sums,) = _asked(trace, _STEPS, window)
        result.steps = tuple(float(value or 0) for value in sums.values())


def _look_at_one_workload(trace: Trace, phase: Phase) -> None:
    if len(phase.turns_ms) > 1:
        for growth in trace.query("turn-growth", format="arrow").to_pylist():
            phase.shape = growth["failure_mode"]
            phase.figures |= {name: growth[name] for name in ("queue_share", "transfer_share")}
    for waste in trace.query("allocator-waste", format="arrow").to_pylist():
        if waste["allocator"] == "recorded":
            phase.figures["wasted_share"] = waste["wasted_share"]


def _asked(trace: Trace, sql: str, window: tuple[int, int]) -> list[dict[str, Any]]:
    start_ns, end_ns = window
    numbers = {"start_ns": start_ns, "end_ns": end_ns, "passes": FIRST_PASSES, "tenths": TENTHS}
    filled = sql.format(within=f"BETWEEN {start_ns} AND {end_ns}", **numbers)
    rows: list[dict[str, Any]] = trace.sql(filled, format="arrow").to_pylist()
    return rows
