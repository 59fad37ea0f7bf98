"""An engine's totals over the whole recording, what cost most, and notes on what found no room in the page."""

from __future__ import annotations

from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.queries.facts import Note, warning
from kvtrace.queries.findings import find_findings, without_findings
from kvtrace.viewer.chunks import Writer
from kvtrace.viewer.source import Source

_TOTALS = """
    SELECT
        (SELECT count(*) FROM request {where}) AS requests,
        (SELECT CASE WHEN {ends} THEN count(finished_ns) END FROM request {where}) AS finished_requests,
        (SELECT sum(prompt_tokens)::BIGINT FROM request {where}) AS prompt_tokens,
        (SELECT sum(output_tokens)::BIGINT FROM request {where}) AS output_tokens,
        (SELECT count(*) FROM step_schedule {where}) AS steps,
        (SELECT median(duration_ns)::BIGINT FROM step {where}) AS median_step_ns,
        (SELECT max(end_ns) - min(start_ns) FROM step {where}) AS span_ns,
        (SELECT max(used_blocks) FROM step_schedule {where}) AS peak_used_blocks,
        (SELECT sum(preempted_requests)::BIGINT FROM step_schedule {where}) AS preemptions,
        (SELECT sum(computed_tokens)::BIGINT FROM request_event {where} AND op = 'preempt') AS released_tokens,
        (SELECT sum(resumed_tokens)::BIGINT FROM step_schedule {where}) AS recomputed_tokens,
        {latency},
        (SELECT count(*) FROM block_event {where}) AS block_events,
        (SELECT count(*) FROM block_event {where} AND pool = 0 AND op = 'evict') AS evictions,
        (SELECT sum(queried_tokens)::BIGINT FROM prefix_lookup {where} AND {first}) AS prefix_queried_tokens,
        (SELECT sum(local_hit_tokens)::BIGINT FROM prefix_lookup {where} AND {first}) AS prefix_hit_tokens,
        (SELECT sum(external_hit_tokens)::BIGINT FROM prefix_lookup {where} AND {first}) AS external_hit_tokens
"""
_LATENCY = "(SELECT quantile_disc({what}, {share})::BIGINT FROM request {{where}}{when}) AS {name}_ns"
_LATENCIES = ",\n        ".join(
    _LATENCY.format(what=what, when=when, share=share, name=f"{name}_p{100 * share:.0f}")
    for name, what, when in (
        ("ttft", "first_token_ns - arrival_ns", ""),
        ("tpot", "(finished_ns - first_token_ns) / (output_tokens - 1)", " AND output_tokens > 1"),
    )
    for share in (0.5, 0.95)
)
_FIRST_ADMISSION = "admitted AND enabled AND NOT resumed"


def engine_totals(source: Source, engine: int) -> dict[str, Any]:
    """An engine's counts over the whole recording, however much of it the page draws."""
    where = f"WHERE engine_id = {engine}"
    ends = f"count(finished_ns) > 0 OR EXISTS (FROM request_event {where})"  # else nothing says that one did not
    latency = _LATENCIES.format(where=where)
    totals = source.row(_TOTALS.format(where=where, first=_FIRST_ADMISSION, ends=ends, latency=latency))
    limits = source.rows(f"""
        SELECT admission_limit::VARCHAR AS name, count(*) AS steps FROM step_schedule
        WHERE engine_id = {engine} AND admission_limit IS NOT NULL GROUP BY ALL ORDER BY name
    """)
    return {**totals, "limits": {row["name"]: row["steps"] for row in limits}}


def run_findings(source: Source) -> dict[str, Any]:
    """Findings, the most expensive first, and the sentence that takes their place where there are none."""
    try:
        found = [finding.as_dict() for finding in find_findings(source.trace)]
        return {"found": found, "instead": "" if found else without_findings(source.trace)}
    except KvtraceError as error:
        return {"found": [], "instead": f"What cost most is not known; a question failed: {error}"}


def left_out(writers: list[Writer]) -> list[Note]:
    """Notes on rows that found no room in the page."""
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
        warning(f"No room in this page for {rows:,} {names.get(kind, kind)}: --split has room, --max-mb makes more.")
        for kind, rows in lost.items()
    ]
