"""Base of imported statistics and steps: a step for each sample, preemptions, blocks in use."""

from __future__ import annotations

import duckdb

_PAIR = """
UPDATE engine_sample SET step = paired.step
FROM (
    SELECT s.source_id, s.sample, t.step
    FROM (SELECT *, row_number() OVER (ORDER BY sample) AS nth FROM engine_sample WHERE engine_id = $engine) s
    JOIN (SELECT step, row_number() OVER (ORDER BY step) AS nth FROM imported_step) t USING (nth)
) AS paired
WHERE engine_sample.engine_id = $engine AND engine_sample.sample = paired.sample
    AND engine_sample.source_id = paired.source_id
"""

_STEPS = """
CREATE OR REPLACE TEMP TABLE placed_step AS
SELECT t.*, s.time_ns, TRY_CAST(s.waiting::BIGINT + s.swapped AS INTEGER) AS off_gpu, s.gpu_usage, s.part,
    coalesce(s.time_ns, TRY_CAST(sum(t.duration_ns) OVER (ORDER BY t.step) AS BIGINT)) AS end_ns,
    s.waiting::BIGINT + s.swapped
        - lag(s.waiting::BIGINT + s.swapped) OVER (PARTITION BY s.part ORDER BY t.step) AS more_off_gpu
FROM imported_step t LEFT JOIN engine_sample s ON s.engine_id = $engine AND s.step = t.step
"""

_SCHEDULE = """
INSERT INTO step_schedule BY NAME
SELECT $engine AS engine_id, p.step, p.end_ns - p.duration_ns AS start_ns, p.running, p.off_gpu AS waiting,
    p.* EXCLUDE (step, duration_ns, running, time_ns, off_gpu, gpu_usage, part, end_ns, more_off_gpu, output_tokens),
    TRY_CAST(CASE WHEN p.more_off_gpu IS NOT NULL THEN greatest(0, p.more_off_gpu + p.resumed_requests) END AS INTEGER)
        AS preempted_requests,
    TRY_CAST(round(p.gpu_usage * e.blocks) AS INTEGER) AS used_blocks,
    e.blocks - TRY_CAST(round(p.gpu_usage * e.blocks) AS INTEGER) AS free_blocks
FROM placed_step p JOIN engine e ON e.engine_id = $engine
ORDER BY p.step
"""

_UPDATE = """
INSERT INTO step_update BY NAME
SELECT $engine AS engine_id, step, end_ns, output_tokens FROM placed_step ORDER BY step
"""


def make_step_table(connection: duckdb.DuckDBPyConnection) -> None:
    """Make temporary table `imported_step`, for an importer to fill: a row a step, columns as in step_schedule."""
    connection.execute(
        """
        CREATE OR REPLACE TEMP TABLE imported_step (
            step INTEGER, duration_ns BIGINT, running INTEGER, output_tokens INTEGER,
            prefill_requests INTEGER, prefill_tokens INTEGER, chunked_prefill_requests INTEGER,
            chunked_prefill_tokens INTEGER, decode_requests INTEGER, decode_tokens INTEGER,
            resumed_requests INTEGER, resumed_tokens INTEGER, budget_tokens INTEGER, budget_left_tokens INTEGER
        )
        """
    )


def insert_steps(connection: duckdb.DuckDBPyConnection, engine_id: int) -> str | None:
    """Fill step_schedule and step_update from `imported_step` and the engine's samples.

    A step is paired with the sample of the same place when there are as many of both; its end is then the sample's
    time, else the sum of the durations before. Returns a warning if they do not pair.
    """
    given = {"engine": engine_id}
    steps, samples = connection.execute(
        "SELECT (SELECT count(*) FROM imported_step), (SELECT count(*) FROM engine_sample WHERE engine_id = $engine)",
        given,
    ).fetchall()[0]
    warning = None
    if steps and samples == steps:
        connection.execute(_PAIR, given)
    elif steps and samples:
        warning = f"{samples} rows of statistics and {steps} steps: they are not of each other and were not paired"
    connection.execute(_STEPS, given)
    connection.execute(_SCHEDULE, given)
    connection.execute(_UPDATE, given)
    connection.execute("DROP TABLE placed_step; DROP TABLE imported_step")
    return warning
