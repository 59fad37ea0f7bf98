"""Steps put together from the objects of a scheduler trace; and lookups, with what they leave unsaid."""

from __future__ import annotations

import duckdb


def insert_steps(connection: duckdb.DuckDBPyConnection, engine_id: int, counts: tuple[str, ...]) -> None:
    """Fill step_schedule and step_update from `sched_row`: a step of all its objects, the first value there counts."""
    for statement in _inserts(engine_id, counts):
        connection.execute(statement)


def infer_lookups(connection: duckdb.DuckDBPyConnection, engine_id: int, *, admitted_told: bool) -> str:
    """Fill the flags of prefix_lookup that the trace does not tell; returns by what rule.

    A blocked request looks up again at every step: its last lookup is the one that was used.
    """
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
    merged = f"""
        CREATE OR REPLACE TEMP TABLE sched_step AS
        SELECT step, coalesce(arg_min(start_ns, line), arg_min(time_ns, line)) AS start_ns,
            coalesce(arg_min(end_ns, line), coalesce(arg_min(start_ns, line), arg_min(time_ns, line))
                + arg_min(duration_ns, line)) AS end_ns,
            arg_min(admission_limit, line) AS admission_limit, arg_min(limit_request, line) AS limit_request, {first},
            coalesce(arg_min(total_blocks, line), (SELECT max(total_blocks) FROM sched_row)) AS total_blocks
        FROM sched_row GROUP BY step
    """
    split = "coalesce(chunked_prefill_tokens, 0) + coalesce(resumed_tokens, 0)"
    parts = ("prefill_tokens", "decode_tokens", "total_tokens")
    none = f"CASE WHEN {' + '.join(f'({part} IS NOT NULL)::INTEGER' for part in parts)} >= 2 THEN 0 END"
    return [
        merged,
        f"""
        INSERT INTO step_schedule BY NAME
        SELECT {engine_id} AS engine_id, s.* EXCLUDE (end_ns, total_tokens, total_blocks, finished_requests,
                output_tokens, usage, prefill_tokens, decode_tokens, chunked_prefill_tokens, resumed_tokens,
                used_blocks, free_blocks, budget_left_tokens),
            coalesce(prefill_tokens, total_tokens - decode_tokens - {split}) AS prefill_tokens,
            coalesce(decode_tokens, total_tokens - prefill_tokens - {split}) AS decode_tokens,
            coalesce(chunked_prefill_tokens, {none})
                AS chunked_prefill_tokens,
            coalesce(resumed_tokens, {none}) AS resumed_tokens,
            coalesce(used_blocks, total_blocks - free_blocks, round(usage * total_blocks)::INTEGER) AS used_blocks,
            coalesce(free_blocks, total_blocks - used_blocks, total_blocks - round(usage * total_blocks)::INTEGER)
                AS free_blocks,
            coalesce(budget_left_tokens, budget_tokens - total_tokens) AS budget_left_tokens
        FROM sched_step s ORDER BY step
        """,
        f"""
        INSERT INTO step_update BY NAME
        SELECT {engine_id} AS engine_id, step, end_ns, output_tokens, finished_requests
        FROM sched_step WHERE coalesce(end_ns, output_tokens, finished_requests) IS NOT NULL ORDER BY step
        """,
        "DROP TABLE sched_row; DROP TABLE sched_step",
    ]
