"""What a page says about the recording as a whole: facts, totals, and what is missing."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from kvtrace.viewer.chunks import Writer
from kvtrace.viewer.source import Source

Facts = list[tuple[str, str | None]]

Note = dict[str, str]
"""`level` (warning or info) and `text`: something the reader of the page has to know."""

_SPAN = """
    SELECT min(time_ns) AS first_ns, max(time_ns) AS last_ns FROM (
        SELECT start_ns AS time_ns FROM step_schedule
        UNION ALL SELECT max(scheduled_ns) FROM step_schedule
        UNION ALL SELECT max(end_ns) FROM step_update
        UNION ALL SELECT unnest([min(time_ns), max(time_ns)]) FROM request_queued
        UNION ALL SELECT unnest([min(time_ns), max(time_ns)]) FROM request_event
        UNION ALL SELECT unnest([min(queued_ns), max(finished_ns)]) FROM request
    )
"""

_TOTALS = """
    SELECT
        (SELECT count(*) FROM request {where}) AS requests,
        (SELECT count(finished_ns) FROM request {where}) AS finished_requests,
        (SELECT sum(prompt_tokens)::BIGINT FROM request {where}) AS prompt_tokens,
        (SELECT sum(output_tokens)::BIGINT FROM request {where}) AS output_tokens,
        (SELECT count(*) FROM step_schedule {where}) AS steps,
        (SELECT median(duration_ns)::BIGINT FROM step {where}) AS median_step_ns,
        (SELECT max(end_ns) - min(start_ns) FROM step {where}) AS span_ns,
        (SELECT max(used_blocks) FROM step_schedule {where}) AS peak_used_blocks,
        (SELECT sum(preempted_requests)::BIGINT FROM step_schedule {where}) AS preemptions,
        (SELECT sum(computed_tokens)::BIGINT FROM request_event {where} AND op = 'preempt') AS released_tokens,
        (SELECT sum(resumed_tokens)::BIGINT FROM step_schedule {where}) AS recomputed_tokens,
        (SELECT count(*) FROM block_event {where}) AS block_events,
        (SELECT count(*) FROM block_event {where} AND pool = 0 AND op = 'evict') AS evictions,
        (SELECT sum(queried_tokens)::BIGINT FROM prefix_lookup {where} AND {first}) AS prefix_queried_tokens,
        (SELECT sum(local_hit_tokens)::BIGINT FROM prefix_lookup {where} AND {first}) AS prefix_hit_tokens,
        (SELECT sum(external_hit_tokens)::BIGINT FROM prefix_lookup {where} AND {first}) AS external_hit_tokens
"""
_FIRST_ADMISSION = "admitted AND enabled AND NOT resumed"


def run_facts(source: Source) -> Facts:
    """The recording's facts as pairs of key and value."""
    facts = source.columns("SELECT key, value FROM run")
    return list(zip(facts["key"], facts["value"], strict=True))


Span = tuple[int | None, int | None]


def spans(source: Source) -> tuple[Span, Span]:
    """UNIX nanoseconds of the first and last thing in the trace, and of the first and last that the engine did.

    A profile begins with the model's loading, long before that. None where there is nothing.
    """
    work = source.row(_SPAN)
    found = [work]
    if source.has("gpu_activity"):
        found.append(source.row("SELECT min(start_ns) AS first_ns, max(end_ns) AS last_ns FROM gpu_activity"))
    firsts = [row["first_ns"] for row in found if row["first_ns"] is not None]
    lasts = [row["last_ns"] for row in found if row["last_ns"] is not None]
    return (min(firsts, default=None), max(lasts, default=None)), (work["first_ns"], work["last_ns"])


def processes(source: Source) -> list[dict[str, Any]]:
    """The processes that recorded. Host names stay in the trace: pages are passed on."""
    return source.rows("""
        SELECT process_id, roles, pid, vllm_version, dp_rank, tp_rank, pp_rank FROM process ORDER BY process_id
    """)


def engines(source: Source) -> list[dict[str, Any]]:
    """Configuration of every engine that has one or that recorded a step or a request.

    A profile without a recording is shown as an engine 0 of which nothing else is known. Of a model loaded from disk
    only the folder's name goes on: pages are passed on.
    """
    found = source.rows("""
        SELECT id AS engine_id, e.* EXCLUDE (engine_id), p.dp_rank, p.pid, p.vllm_version
        FROM (
            SELECT engine_id AS id FROM engine UNION SELECT engine_id FROM step_schedule
            UNION SELECT engine_id FROM request WHERE engine_id IS NOT NULL
        )
        LEFT JOIN engine e ON e.engine_id = id LEFT JOIN process p ON p.process_id = id ORDER BY id
    """)
    if not found and source.has("gpu_activity"):
        return [{"engine_id": 0, "model": None}]
    return [{**engine, "model": _without_folder(engine["model"])} for engine in found]


def _without_folder(model: str | None) -> str | None:
    return PurePath(model).name if model and PurePath(model).is_absolute() else model


def engine_totals(source: Source, engine: int) -> dict[str, Any]:
    """An engine's counts over the whole recording, however much of it the page draws."""
    totals = source.row(_TOTALS.format(where=f"WHERE engine_id = {engine}", first=_FIRST_ADMISSION))
    limits = source.rows(f"""
        SELECT admission_limit::VARCHAR AS name, count(*) AS steps FROM step_schedule
        WHERE engine_id = {engine} AND admission_limit IS NOT NULL GROUP BY ALL ORDER BY name
    """)
    return {**totals, "limits": {row["name"]: row["steps"] for row in limits}}


def notes(source: Source, facts: Facts) -> list[Note]:
    """What is missing from the recording or went wrong with it."""
    return [
        *[_warning(f"Predicted, not recorded: a replay of {value}.") for key, value in facts if key == "replayed"],
        *[_warning(value) for key, value in facts if value and key.startswith("warning")],
        *_ending(dict(facts)),
        *_losses(source),
        *_hooks(source),
        *_joins(source),
        *_homeless(source),
    ]


def left_out(writers: list[Writer]) -> list[Note]:
    """What found no room in the page."""
    names = {
        "map": "changes of KV blocks",
        "shares": "requests' shares of steps",
        "access": "KV accesses of single steps",
    }
    lost: dict[str, int] = {}
    for writer in writers:
        for kind, rows in writer.left_out.items():
            lost[kind] = lost.get(kind, 0) + rows
    return [
        _warning(f"No room in this page for {rows:,} {names.get(kind, kind)}: --split has room, --max-mb makes more.")
        for kind, rows in lost.items()
    ]


def _warning(text: str) -> Note:
    return {"level": "warning", "text": text}


def _ending(facts: dict[str, str | None]) -> list[Note]:
    code = facts.get("exit_code")
    return [] if code in {None, "0"} else [_warning(f"The recorded command ended with exit code {code}.")]


def _losses(source: Source) -> list[Note]:
    stopped = source.rows("SELECT process_id, roles, stopped FROM process WHERE stopped IS NOT NULL")
    lost = source.rows("""
        SELECT event, sum(dropped)::BIGINT AS dropped, sum(torn)::BIGINT AS torn FROM stream
        GROUP BY event HAVING sum(dropped) + sum(torn) > 0 ORDER BY event
    """)
    return [
        *[
            _warning(f"Recording stopped early in process {row['process_id']} ({row['roles']}): {row['stopped']}")
            for row in stopped
        ],
        *[_warning(f"{row['event']}: {row['dropped']:,} records were dropped.") for row in lost if row["dropped"]],
        *[
            _warning(f"{row['event']}: {row['torn']:,} records were being written when their process died.")
            for row in lost
            if row["torn"]
        ],
    ]


def _hooks(source: Source) -> list[Note]:
    broken = source.rows("""
        SELECT hook, state, max(detail) AS detail, count(*) AS processes FROM hook
        WHERE state <> 'installed' GROUP BY hook, state ORDER BY hook
    """)
    meaning = {"absent": "not found in this vLLM", "disabled": "failed and was cut off"}
    return [
        _warning(f"Hook {row['hook']}: {meaning.get(row['state'], row['state'])}. {row['detail'] or ''}".rstrip())
        for row in broken
    ]


def _joins(source: Source) -> list[Note]:
    joins = source.rows("SELECT name, matched, unmatched FROM join_count WHERE unmatched > 0 ORDER BY name")
    return [
        {"level": "info", "text": f"Join {row['name']}: {row['unmatched']:,} rows without a partner."} for row in joins
    ]


def _homeless(source: Source) -> list[Note]:
    count = source.row("SELECT count(*) AS n FROM request WHERE engine_id IS NULL")["n"]
    return [{"level": "info", "text": f"{count:,} requests never reached an engine."}] if count else []
