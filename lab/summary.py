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
from kvtrace.lab.results import Phase, Result
from kvtrace.lab.sweep import RESULT, RUN, read_object
from kvtrace.queries.statistics import value_of
from kvtrace.queries.trace import TRACE_NAME

_PHASE = """
SELECT
    (SELECT count(*) FROM request_event WHERE op = 'preempt' AND time_ns BETWEEN ? AND ?) AS preemptions,
    (SELECT count(*) FROM block_event WHERE op = 'evict' AND pool = 0 AND time_ns BETWEEN ? AND ?) AS evicted_blocks,
    (SELECT sum(bytes)::BIGINT FROM transfer WHERE direction = 'load' AND submitted_ns BETWEEN ? AND ?) AS load_bytes,
    (SELECT sum(bytes)::BIGINT FROM transfer WHERE direction = 'store' AND submitted_ns BETWEEN ? AND ?) AS store_bytes,
    (SELECT sum(coalesce(device_ns, finished_ns - coalesce(started_ns, submitted_ns)))::DOUBLE FROM transfer
        WHERE direction = 'load' AND submitted_ns BETWEEN ? AND ?) / nullif(? - ?, 0) AS load_share,
    (SELECT sum(coalesce(device_ns, finished_ns - coalesce(started_ns, submitted_ns)))::DOUBLE FROM transfer
        WHERE direction = 'store' AND submitted_ns BETWEEN ? AND ?) / nullif(? - ?, 0) AS store_share,
    (SELECT avg(first_token_ns - queued_ns) / 1e6 FROM request WHERE queued_ns BETWEEN ? AND ?) AS engine_ttft_ms
"""
_PASSES = """
SELECT
    count(*) AS passes,
    sum(scheduled_tokens) * 1e9 / nullif(sum(own_ns), 0) AS pass_tokens_per_s,
    sum(scheduled_tokens) FILTER (decode_tokens = 0) * 1e9 / nullif(sum(own_ns) FILTER (decode_tokens = 0), 0)
        AS prefill_tokens_per_s,
    sum(decode_tokens) FILTER (decode_tokens = scheduled_tokens) * 1e9
        / nullif(sum(own_ns) FILTER (decode_tokens = scheduled_tokens), 0) AS decode_tokens_per_s
FROM step JOIN step_time USING (engine_id, step) WHERE start_ns BETWEEN ? AND ?
"""
_STEPS = """
SELECT count(*), sum(tokens), sum(ms), sum(tokens * tokens), sum(tokens * ms), sum(ms * ms)
FROM (SELECT scheduled_tokens::DOUBLE AS tokens, own_ns / 1e6 AS ms FROM step JOIN step_time USING (engine_id, step)
    WHERE own_ns IS NOT NULL AND start_ns BETWEEN ? AND ?)
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
    from kvtrace.queries import Trace

    with Trace(result.place / RUN / TRACE_NAME) as trace:
        engines = trace.sql("SELECT * FROM engine", format="arrow").to_pylist()
        result.engine = engines[0] if engines else {}
        for phase, told in zip(result.phases, result.facts.get("phases", []), strict=False):
            window = [int(told["start_ns"]), int(told["end_ns"])]
            for asked in (_PHASE, _PASSES):
                (row,) = trace.sql(_filled(asked, window), format="arrow").to_pylist()
                phase.figures |= row
        phases = result.facts.get("phases") or [{"start_ns": 0, "end_ns": 0}]
        window = [int(phases[0]["start_ns"]), int(phases[-1]["end_ns"])]
        if len(result.phases) == 1 and len(result.phases[0].turns_ms) > 1:
            for growth in trace.query("turn-growth", format="arrow").to_pylist():
                result.phases[0].shape = growth["failure_mode"]
                result.phases[0].figures |= {name: growth[name] for name in ("queue_share", "transfer_share")}
        (sums,) = trace.sql(_filled(_STEPS, window), format="arrow").to_pylist()
        result.steps = tuple(float(value or 0) for value in sums.values())


def _filled(sql: str, window: list[int]) -> str:
    """The window's ends in place of each pair of question marks; they are whole numbers."""
    return sql.replace("? AND ?", f"{window[0]} AND {window[1]}").replace("? - ?", f"{window[1]} - {window[0]}")
