"""Steps put together from the objects of a scheduler trace; and lookups, with what they leave unsaid."""

from __future__ import annotations

import duckdb

from kvtrace.ingest.guard import span_sql

SAID = {
    "free_blocks and used_blocks of step_schedule": "recorded before admission, at the top of `schedule`",
    "running and waiting of step_schedule": "derived: before admission, and who was admitted and preempted",
    "end of a step": "derived: the next step's snapshot; none across a gap",
    "computed_tokens of a preemption": "derived: those of the requests file, else of the request's share a step before",
    "cached tokens of an admission": "derived: the lookup's of that step",
    "phase": "inferred: computed tokens below the prompt's are prefill, after a preemption resumed",
    "admission_limit": "inferred by the rules of the study's viewer; its word is scheduler_snapshot.admission_reason",
}
"""How values came about that the study's layout does not say as such; for table `run`."""


def insert_steps(
    connection: duckdb.DuckDBPyConnection, engine_id: int, counts: tuple[str, ...]
) -> tuple[bool, list[str]]:
    """Fill step_schedule and step_update from `sched_row`: a step of all its objects, the first value there counts.

    Returns:
        Whether the trace says whom steps admitted, so that its snapshots are from before that; and warnings about steps
        that end before they begin, whose end is NULL.
    """
    statements = _inserts(engine_id, counts)
    connection.execute(statements[0])
    wrong = connection.execute("SELECT step FROM sched_step WHERE NOT is_span ORDER BY step").fetchall()
    [(decided,)] = connection.execute("SELECT count(new_requests) > 0 FROM sched_step").fetchall()
    for statement in statements[1:]:
        connection.execute(statement)
    which = ", ".join(str(step) for (step,) in wrong[:3]) + (", ..." if len(wrong) > 3 else "")
    warnings = [f"{len(wrong)} steps have times that cannot be and got no end: step {which}"] if wrong else []
    return bool(decided), warnings


def infer_phases(connection: duckdb.DuckDBPyConnection, engine_id: int) -> None:
    """Fill phase and computed_tokens of step_request, then the steps' tokens and requests by phase.

    What a request had before the step is in request_snapshot; else it follows from the lookup with which it was
    admitted and from its shares since, if no step between is missing.
    """
    connection.execute(_PHASES.format(engine=engine_id))
    connection.execute(_BY_PHASE.format(engine=engine_id))
    connection.execute("DROP TABLE sched_phase")


def fill_events(connection: duckdb.DuckDBPyConnection, engine_id: int) -> None:
    """Fill what preemptions discarded and what admissions found in caches, where the trace tells of it elsewhere."""
    for statement in _EVENTS.format(engine=engine_id).split(";"):
        connection.execute(statement)


def infer_limits(connection: duckdb.DuckDBPyConnection, engine_id: int) -> None:
    """Fill admission_limit by the rules that the study's viewer shows, with its word for it."""
    for statement in _LIMITS.format(engine=engine_id).split(";"):
        connection.execute(statement)


_PHASES = """
CREATE OR REPLACE TEMP TABLE sched_phase AS
WITH numbered AS (
    SELECT step, row_number() OVER (ORDER BY step) AS nth FROM step_schedule WHERE engine_id = {engine}
), admission AS (
    SELECT e.request, e.step, e.op = 'resume' AS resumed, n.nth,
        max(l.local_hit_tokens + coalesce(l.external_hit_tokens, 0)) AS hit_tokens
    FROM request_event e JOIN numbered n USING (step)
        LEFT JOIN prefix_lookup l ON l.engine_id = e.engine_id AND l.request = e.request AND l.step = e.step
    WHERE e.engine_id = {engine} AND e.op IN ('schedule', 'resume') GROUP BY ALL
), share AS (
    SELECT s.request, s.step, s.scheduled_tokens, a.step AS admitted_step, a.resumed, a.hit_tokens,
        n.nth - a.nth = s.step - a.step AS whole,
        coalesce(sum(s.scheduled_tokens) OVER (
            PARTITION BY s.request, a.step ORDER BY s.step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0) AS since_tokens
    FROM step_request s JOIN numbered n USING (step)
        ASOF LEFT JOIN admission a ON a.request = s.request AND a.step <= s.step
    WHERE s.engine_id = {engine}
), known AS (
    SELECT s.*, coalesce(q.prompt_tokens, r.prompt_tokens) AS prompt_tokens,
        coalesce(q.tokens, r.prompt_tokens) AS known_tokens,
        CASE WHEN q.request IS NOT NULL AND s.admitted_step IS DISTINCT FROM s.step THEN q.computed_tokens
            WHEN s.admitted_step = s.step THEN greatest(coalesce(q.computed_tokens, 0), s.hit_tokens)
            WHEN s.whole THEN s.hit_tokens + s.since_tokens END AS computed_tokens,
        coalesce(s.resumed, q.preemptions > 0, false) AS again
    FROM share s LEFT JOIN request_snapshot q
            ON q.engine_id = {engine} AND q.step = s.step AND q.request = s.request
        LEFT JOIN request r ON r.request = s.request
)
SELECT request, step, computed_tokens::INTEGER AS computed_tokens,
    CASE WHEN computed_tokens IS NULL OR prompt_tokens IS NULL THEN NULL
        WHEN again AND computed_tokens < greatest(known_tokens - 1, prompt_tokens) THEN 'resumed'
        WHEN computed_tokens >= prompt_tokens THEN 'decode'
        WHEN computed_tokens + scheduled_tokens >= prompt_tokens THEN 'prefill'
        ELSE 'chunked_prefill' END AS phase
FROM known;
UPDATE step_request SET phase = coalesce(step_request.phase, p.phase::e_phase),
    computed_tokens = coalesce(step_request.computed_tokens, p.computed_tokens)
FROM sched_phase p
WHERE step_request.engine_id = {engine} AND step_request.step = p.step AND step_request.request = p.request
"""

_EVENTS = """
UPDATE request_event SET computed_tokens = q.computed_tokens, output_tokens = q.output_tokens
FROM request_snapshot q
WHERE request_event.engine_id = {engine} AND q.engine_id = {engine} AND request_event.op = 'preempt'
    AND q.step = request_event.step AND q.request = request_event.request;
UPDATE request_event SET computed_tokens = s.computed_tokens + s.scheduled_tokens
FROM step_request s
WHERE request_event.engine_id = {engine} AND s.engine_id = {engine} AND request_event.op = 'preempt'
    AND request_event.computed_tokens IS NULL
    AND s.step = request_event.step - 1 AND s.request = request_event.request;
UPDATE request_event SET local_cached_tokens = l.local_hit_tokens, external_cached_tokens = l.external_hit_tokens
FROM (FROM prefix_lookup WHERE engine_id = {engine} AND admitted) AS l
WHERE request_event.engine_id = {engine} AND request_event.op IN ('schedule', 'resume')
    AND l.step = request_event.step AND l.request = request_event.request
"""

_COUNTED = ("prefill", "chunked_prefill", "decode", "resumed")
_BY_PHASE = """
UPDATE step_schedule SET {sets}
FROM (
    SELECT step, {sums} FROM step_request WHERE engine_id = {engine} GROUP BY step HAVING count(phase) = count(*)
) AS found
WHERE step_schedule.engine_id = {engine} AND step_schedule.step = found.step AND step_schedule.prefill_requests IS NULL
""".format(
    engine="{engine}",
    sets=", ".join(f"{phase}_{what} = found.{phase}_{what}" for phase in _COUNTED for what in ("tokens", "requests")),
    sums=", ".join(
        f"coalesce(sum(scheduled_tokens) FILTER (phase = '{phase}'), 0)::INTEGER AS {phase}_tokens, "
        f"count_if(phase = '{phase}')::INTEGER AS {phase}_requests"
        for phase in _COUNTED
    ),
)

_LIMITS = """
CREATE OR REPLACE TEMP TABLE sched_reason AS
SELECT s.step, CASE
        WHEN s.waiting = 0 THEN 'none'
        WHEN s.preempted_requests > 0 THEN 'preempted'
        WHEN s.budget_left_tokens <= 0.05 * s.budget_tokens THEN 'tok-budget'
        WHEN s.running >= e.max_num_seqs THEN 'max-seqs'
        WHEN b.free_blocks < 20 THEN 'kv-low'
        WHEN b.free_blocks < 200 THEN 'kv-tight-after-run'
        WHEN b.free_blocks > 500 AND s.waiting = b.waiting THEN 'alloc-rejected'
        ELSE 'unknown' END AS reason
FROM step_schedule s JOIN scheduler_snapshot b USING (engine_id, step) JOIN engine e USING (engine_id)
WHERE s.engine_id = {engine} AND s.admission_limit IS NULL AND s.waiting IS NOT NULL
    AND s.scheduled_ns IS NOT NULL;
UPDATE step_schedule SET admission_limit = CASE reason WHEN 'none' THEN 'none' WHEN 'preempted' THEN 'preempted'
    WHEN 'tok-budget' THEN 'token_budget' WHEN 'max-seqs' THEN 'max_num_seqs' WHEN 'unknown' THEN 'other'
    ELSE 'kv_insufficient' END
FROM sched_reason r WHERE step_schedule.engine_id = {engine} AND step_schedule.step = r.step;
UPDATE scheduler_snapshot SET admission_reason = r.reason
FROM sched_reason r WHERE scheduler_snapshot.engine_id = {engine} AND scheduler_snapshot.step = r.step;
DROP TABLE sched_reason
"""


def infer_lookups(
    connection: duckdb.DuckDBPyConnection, engine_id: int, *, admitted_told: bool, events_told: bool
) -> str:
    """Fill the flags of prefix_lookup that the trace does not tell; returns by what rule.

    A blocked request looks up again at every step: its last lookup is the one that was used.
    """
    if events_told and not admitted_told:
        named = (
            "EXISTS (FROM request_event e WHERE e.engine_id = prefix_lookup.engine_id AND e.step = prefix_lookup.step "
            "AND e.request = prefix_lookup.request AND e.op"
        )
        connection.execute(
            f"UPDATE prefix_lookup SET admitted = {named} IN ('schedule', 'resume')), "
            f"enabled = coalesce(enabled, true), resumed = coalesce(resumed, {named} = 'resume')) "
            f"WHERE engine_id = {engine_id}"
        )
        return "derived: admitted and resumed, by whom the step's decision names; inferred: enabled, true"
    last = f"rowid IN (SELECT max(rowid) FROM prefix_lookup WHERE engine_id = {engine_id} GROUP BY request)"
    connection.execute(
        f"""
        UPDATE prefix_lookup SET admitted = {"admitted" if admitted_told else last},
            enabled = coalesce(enabled, true), resumed = coalesce(resumed, false)
        WHERE engine_id = {engine_id}
        """
    )
    rule = "" if admitted_told else "admitted, the last lookup of each request; "
    return f"inferred: {rule}enabled, true; resumed, false"


def _inserts(engine_id: int, counts: tuple[str, ...]) -> list[str]:
    wanted = (*(name for name in counts if name != "total_blocks"), "usage")
    first = ", ".join(f"arg_min({column}, line) AS {column}" for column in wanted)
    return [
        _STEP.format(first=first, is_span=span_sql("start_ns", "coalesce(given_end_ns, next_ns)")),
        _SCHEDULE.format(engine=engine_id),
        _UPDATE.format(engine=engine_id),
        "DROP TABLE sched_row; DROP TABLE sched_step",
    ]


_STEP = """
CREATE OR REPLACE TEMP TABLE sched_step AS
WITH step_row AS (
    SELECT step, coalesce(arg_min(start_ns, line), arg_min(time_ns, line)) AS start_ns,
        arg_min(time_ns, line) FILTER (snapshot) AS snapshot_ns,
        arg_min(time_ns, line) FILTER (NOT snapshot) AS decided_ns,
        coalesce(
            arg_min(end_ns, line),
            coalesce(arg_min(start_ns, line), arg_min(time_ns, line)) + arg_min(duration_ns, line)
        ) AS given_end_ns,
        arg_min(admission_limit, line) AS admission_limit, arg_min(limit_request, line) AS limit_request, {first},
        coalesce(arg_min(total_blocks, line), (SELECT max(total_blocks) FROM sched_row)) AS total_blocks
    FROM sched_row GROUP BY step
), ended AS (
    SELECT *, CASE WHEN lead(step) OVER by_step = step + 1 THEN lead(snapshot_ns) OVER by_step END AS next_ns
    FROM step_row WINDOW by_step AS (ORDER BY step)
), spanned AS (
    SELECT *, coalesce(given_end_ns, next_ns) AS any_end_ns, {is_span} AS is_span FROM ended
)
SELECT * EXCLUDE (snapshot_ns, decided_ns, given_end_ns, next_ns, any_end_ns),
    CASE WHEN is_span THEN any_end_ns END AS end_ns,
    CASE WHEN decided_ns >= start_ns AND snapshot_ns IS NOT NULL THEN decided_ns END AS scheduled_ns
FROM spanned
"""

_TOLD = ("prefill_tokens", "decode_tokens", "total_tokens")
_SCHEDULE = """
INSERT INTO step_schedule BY NAME
WITH filled AS (
    SELECT *, coalesce(chunked_prefill_tokens, 0) + coalesce(resumed_tokens, 0) AS other_tokens,
        coalesce(new_requests + coalesce(resumed_requests, 0) - coalesce(preempted_requests, 0), 0) AS more_running,
        CASE WHEN {told} >= 2 THEN 0 END AS untold_tokens,
        round(usage * total_blocks)::INTEGER AS usage_blocks
    FROM sched_step
)
SELECT {engine} AS engine_id, s.* EXCLUDE (end_ns, total_tokens, total_blocks, finished_requests,
        output_tokens, usage, prefill_tokens, decode_tokens, chunked_prefill_tokens, resumed_tokens,
        used_blocks, free_blocks, budget_left_tokens, running, waiting, new_requests, max_running, is_span,
        other_tokens, more_running, untold_tokens, usage_blocks),
    running + more_running AS running,
    waiting - more_running AS waiting,
    coalesce(prefill_tokens, total_tokens - decode_tokens - other_tokens) AS prefill_tokens,
    coalesce(decode_tokens, total_tokens - prefill_tokens - other_tokens) AS decode_tokens,
    coalesce(chunked_prefill_tokens, untold_tokens) AS chunked_prefill_tokens,
    coalesce(resumed_tokens, untold_tokens) AS resumed_tokens,
    coalesce(used_blocks, total_blocks - free_blocks, usage_blocks) AS used_blocks,
    coalesce(free_blocks, total_blocks - used_blocks, total_blocks - usage_blocks) AS free_blocks,
    coalesce(budget_left_tokens, budget_tokens - total_tokens) AS budget_left_tokens
FROM filled s ORDER BY step
""".format(engine="{engine}", told=" + ".join(f"({part} IS NOT NULL)::INTEGER" for part in _TOLD))

_UPDATE = """
INSERT INTO step_update BY NAME
SELECT {engine} AS engine_id, step, end_ns, output_tokens, finished_requests
FROM sched_step WHERE coalesce(end_ns, output_tokens, finished_requests) IS NOT NULL ORDER BY step
"""
