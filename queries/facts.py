"""Facts about a recording as a whole: its run, span, processes and engines, and what is missing from it."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any, NamedTuple

from kvtrace.queries.trace import Trace

Facts = dict[str, str | None]

Note = dict[str, str]
"""`level` (warning or info) and `text`: something the reader of a page has to know."""


class Span(NamedTuple):
    """UNIX nanoseconds of the first and last thing; None where there is nothing."""

    first_ns: int | None
    last_ns: int | None


_WORK = """
    SELECT min(time_ns) AS first_ns, max(time_ns) AS last_ns FROM (
        SELECT start_ns AS time_ns FROM step_schedule WHERE {own}
        UNION ALL SELECT max(scheduled_ns) FROM step_schedule WHERE {own}
        UNION ALL SELECT max(end_ns) FROM step_update WHERE {own}
        UNION ALL SELECT unnest([min(time_ns), max(time_ns)]) FROM request_queued WHERE {own}
        UNION ALL SELECT unnest([min(time_ns), max(time_ns)]) FROM request_event WHERE {own}
        UNION ALL SELECT unnest([min(queued_ns), max(finished_ns)]) FROM request WHERE {own}
        -- Of a request trace, which says what was asked and not what an engine did:
        UNION ALL SELECT unnest([min(arrival_ns), max(arrival_ns)]) FROM request
        WHERE {own} AND NOT EXISTS (FROM step_schedule WHERE {own}) AND NOT EXISTS (FROM request_event WHERE {own})
    )
"""
_PROFILE = "SELECT min(start_ns) AS first_ns, max(end_ns) AS last_ns FROM gpu_activity"
_HOOK_STATES = {"absent": "not found in this vLLM", "disabled": "failed and was cut off"}


def run_facts(trace: Trace) -> Facts:
    """The rows of table `run`, by key."""
    return {row["key"]: row["value"] for row in _rows(trace, "SELECT key, value FROM run")}


def command_line(facts: Facts) -> str | None:
    """The recorded command as words; the manifest keeps it as a JSON list."""
    text = facts.get("command")
    try:
        words = json.loads(text or "null")
    except ValueError:
        return text
    return " ".join(map(str, words)) if isinstance(words, list) else text


def whole_span(trace: Trace) -> Span:
    """The span of the trace with its profile, which begins with the model's loading, long before the engine works."""
    spans = [work_span(trace)]
    if _exists(trace, "gpu_activity"):
        (row,) = _rows(trace, _PROFILE)
        spans.append(Span(**row))
    firsts = [span.first_ns for span in spans if span.first_ns is not None]
    lasts = [span.last_ns for span in spans if span.last_ns is not None]
    return Span(min(firsts, default=None), max(lasts, default=None))


def work_span(trace: Trace, engine: int | None = None) -> Span:
    """The span of what the engines did, or one of them."""
    (row,) = _rows(trace, _WORK.format(own="true" if engine is None else f"engine_id = {engine}"))
    return Span(**row)


def processes(trace: Trace) -> list[dict[str, Any]]:
    """The processes that recorded. Host names stay in the trace: pages are passed on."""
    return _rows(
        trace,
        "SELECT process_id, roles, pid, vllm_version, dp_rank, tp_rank, pp_rank FROM process ORDER BY process_id",
    )


def engines(trace: Trace) -> list[dict[str, Any]]:
    """The configuration of every engine that has one or that recorded a step or a request.

    Of a model loaded from disk only the folder's name goes on: pages are passed on.
    """
    found = _rows(
        trace,
        """
        SELECT id AS engine_id, e.* EXCLUDE (engine_id), p.dp_rank, p.pid, p.vllm_version
        FROM (
            SELECT engine_id AS id FROM engine UNION SELECT engine_id FROM step_schedule
            UNION SELECT engine_id FROM request WHERE engine_id IS NOT NULL
        )
        LEFT JOIN engine e ON e.engine_id = id LEFT JOIN process p ON p.process_id = id ORDER BY id
        """,
    )
    return [{**engine, "model": model_name(engine["model"])} for engine in found]


def model_name(model: str | None) -> str | None:
    """A model's name without the folder that it was loaded from."""
    return PurePath(model).name if model and PurePath(model).is_absolute() else model


def notes(trace: Trace) -> list[Note]:
    """Notes on what is missing from the recording or went wrong with it."""
    facts = run_facts(trace)
    warnings = [f"Predicted, not recorded: a replay of {facts['replayed']}."] if facts.get("replayed") else []
    warnings += [value for key, value in facts.items() if value and key.startswith("warning")]
    if (code := facts.get("exit_code")) not in (None, "0"):
        warnings.append(f"The recorded command ended with exit code {code}.")
    warnings += [*_losses(trace), *_hooks(trace)]
    return [*map(warning, warnings), *({"level": "info", "text": text} for text in _loose_ends(trace))]


def warning(text: str) -> Note:
    """A note of the level warning."""
    return {"level": "warning", "text": text}


def _losses(trace: Trace) -> list[str]:
    stopped = _rows(trace, "SELECT process_id, roles, stopped FROM process WHERE stopped IS NOT NULL")
    lost = _rows(
        trace,
        """
        SELECT event, sum(dropped)::BIGINT AS dropped, sum(torn)::BIGINT AS torn FROM stream
        GROUP BY event HAVING sum(dropped) + sum(torn) > 0 ORDER BY event
        """,
    )
    return [
        *(f"Recording stopped early in process {x['process_id']} ({x['roles']}): {x['stopped']}" for x in stopped),
        *(f"{x['event']}: {x['dropped']:,} records were dropped." for x in lost if x["dropped"]),
        *(f"{x['event']}: {x['torn']:,} records were not whole and are left out." for x in lost if x["torn"]),
    ]


def _hooks(trace: Trace) -> list[str]:
    broken = _rows(
        trace,
        """
        SELECT hook, state, max(detail) AS detail FROM hook
        WHERE state <> 'installed' GROUP BY hook, state ORDER BY hook
        """,
    )
    return [
        f"Hook {row['hook']}: {_HOOK_STATES.get(row['state'], row['state'])}. {row['detail'] or ''}".rstrip()
        for row in broken
    ]


def _loose_ends(trace: Trace) -> list[str]:
    joins = _rows(trace, "SELECT name, unmatched FROM join_count WHERE unmatched > 0 ORDER BY name")
    (row,) = _rows(trace, "SELECT count(*) AS n FROM request WHERE engine_id IS NULL")
    found = [f"Join {join['name']}: {join['unmatched']:,} rows without a partner." for join in joins]
    return [*found, *([f"{row['n']:,} requests never reached an engine."] if row["n"] else [])]


def _exists(trace: Trace, table: str) -> bool:
    """A table that older traces lack is there and has rows."""
    there = _rows(trace, f"SELECT 1 FROM information_schema.tables WHERE table_name = '{table}'")
    return bool(there) and bool(_rows(trace, f"SELECT 1 FROM {table} LIMIT 1"))


def _rows(trace: Trace, sql: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = trace.sql(sql, "arrow").to_pylist()
    return found
