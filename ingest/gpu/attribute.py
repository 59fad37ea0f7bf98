"""Gives activities their calls and their steps: thread and time of the call, then process and correlation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from kvtrace.ingest import columns
from kvtrace.ingest.gpu.align import Alignment
from kvtrace.ingest.gpu.enums import Attribution
from kvtrace.ingest.gpu.timeline import Breakpoint, Range, breakpoints

_METHODS = "[" + ", ".join(f"'{method.name}'" for method in Attribution) + "]"

_RECORDED = """
    SELECT g.pid, f.start_ns, f.end_ns, f.step, u.update_ns
    FROM gpu_process g JOIN forward f USING (process_id) LEFT JOIN step_update u USING (engine_id, step)
    WHERE g.source_id = ? ORDER BY ALL
"""

_CALL_STEP = """
CREATE OR REPLACE TEMP TABLE call_step AS
SELECT c.call_id, c.pid, c.correlation, b.step,
    CASE WHEN b.step IS NULL THEN NULL WHEN t.own THEN b.method ELSE 'other_thread' END::e_attribution AS method
FROM (SELECT * FROM gpu_call WHERE source_id = {source} AND api <> 'other') AS c
    LEFT JOIN thread_timeline t ON t.pid = c.pid AND t.tid = c.tid
    ASOF LEFT JOIN breakpoint b ON b.timeline = t.timeline AND b.at_ns <= c.start_ns
"""
_CALL_ALONE = """
CREATE OR REPLACE TEMP TABLE call_step AS
SELECT call_id, pid, correlation, NULL::INTEGER AS step, NULL::e_attribution AS method
FROM gpu_call WHERE source_id = {source} AND api <> 'other'
"""
_ONCE = """
CREATE OR REPLACE TEMP TABLE call_step AS
SELECT DISTINCT ON (pid, correlation) * FROM call_step ORDER BY pid, correlation, call_id
"""
_BY_CALL = """
INSERT INTO gpu_attribution
SELECT a.activity_id, c.call_id, CASE WHEN c.step IS NOT NULL THEN e.engine_id END, c.step, c.method
FROM (SELECT activity_id, pid, correlation FROM gpu_activity
        WHERE source_id = {source} AND coalesce(pid, -1) NOT IN (SELECT pid FROM pid_without_calls)) AS a
    LEFT JOIN call_step c ON c.correlation = a.correlation AND c.pid = a.pid
    LEFT JOIN pid_engine e ON e.pid = a.pid
"""
_BY_GPU_TIME = """
INSERT INTO gpu_attribution
SELECT a.activity_id, NULL, CASE WHEN b.step IS NOT NULL THEN e.engine_id END, b.step,
    CASE WHEN b.step IS NOT NULL THEN 'gpu_time' END
FROM (SELECT a.*, t.timeline FROM gpu_activity a
        JOIN pid_without_calls USING (pid) LEFT JOIN pid_timeline t USING (pid) WHERE a.source_id = {source}) AS a
    ASOF LEFT JOIN (FROM breakpoint WHERE method IN ('nvtx_forward', 'recorded_forward')) AS b
        ON b.timeline = a.timeline AND b.at_ns <= a.start_ns
    LEFT JOIN pid_engine e ON e.pid = a.pid
"""


class Marked(NamedTuple):
    """kvtrace's ranges in a profile, in the profile's own time, and how that becomes UNIX time."""

    ranges: Sequence[Range]
    alignment: Alignment


def attribute(connection: duckdb.DuckDBPyConnection, source_id: int, marked: Marked) -> None:
    """Fill table `gpu_attribution` for a source whose activities, calls and `gpu_process` rows are there."""
    found = _insert_timelines(connection, source_id, marked)
    connection.execute((_CALL_STEP if found else _CALL_ALONE).format(source=source_id))
    before = _count(connection, "SELECT count(*) FROM gpu_attribution")
    connection.execute(_BY_CALL.format(source=source_id))
    expected = _count(
        connection,
        f"SELECT count(*) FROM gpu_activity WHERE source_id = {source_id} "
        "AND coalesce(pid, -1) NOT IN (SELECT pid FROM pid_without_calls)",
    )
    if _count(connection, "SELECT count(*) FROM gpu_attribution") - before > expected:
        connection.execute(
            "DELETE FROM gpu_attribution WHERE activity_id IN "
            f"(SELECT activity_id FROM gpu_activity WHERE source_id = {source_id})"
        )
        connection.execute(_ONCE)
        connection.execute(_BY_CALL.format(source=source_id))
    connection.execute(_BY_GPU_TIME.format(source=source_id))
    for table in ("call_step", "breakpoint", "thread_timeline", "pid_timeline", "pid_engine", "pid_without_calls"):
        connection.execute(f"DROP TABLE {table}")


def _count(connection: duckdb.DuckDBPyConnection, sql: str) -> int:
    row = connection.execute(sql).fetchone()
    return int(row[0]) if row else 0


def _insert_timelines(connection: duckdb.DuckDBPyConnection, source_id: int, marked: Marked) -> bool:
    """Make the temporary tables that `_CALL_STEP` and the others join; returns whether any step is known."""
    by_nvtx = list(breakpoints(marked.ranges))
    with_nvtx = {point.pid for point in by_nvtx}
    rows = connection.execute(_RECORDED, [source_id]).fetchall()
    recorded = [
        Range(pid, 0, start_ns, max(start_ns, end_ns or start_ns), Attribution.recorded_forward, step, update_ns)
        for pid, start_ns, end_ns, step, update_ns in rows
        if pid not in with_nvtx and start_ns is not None
    ]
    by_record = list(breakpoints(recorded))
    timelines = {key: n for n, key in enumerate(dict.fromkeys((p.pid, p.tid) for p in (*by_nvtx, *by_record)), 1)}
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE breakpoint (timeline INTEGER, at_ns BIGINT, step INTEGER, method e_attribution)"
    )
    _insert_breakpoints(connection, by_nvtx, timelines, marked.alignment.sql("at_ns"))
    _insert_breakpoints(connection, by_record, timelines, "at_ns")
    _insert_threads(connection, source_id, timelines, _main_threads(by_nvtx))
    return bool(timelines)


def _insert_breakpoints(
    connection: duckdb.DuckDBPyConnection,
    points: list[Breakpoint],
    timelines: dict[tuple[int, int], int],
    unix_ns: str,
) -> None:
    if not points:
        return
    arrays: dict[str, pa.Array[Any]] = {
        "timeline": columns.numbers(np.array([timelines[p.pid, p.tid] for p in points], np.int32), pa.int32()),
        "at_ns": columns.numbers(np.array([p.at_ns for p in points], np.int64), pa.int64()),
        "step": columns.numbers(np.array([-1 if p.step is None else p.step for p in points], np.int32), pa.int32()),
        "method": columns.numbers(np.array([p.method or 0 for p in points], np.int32), pa.int32()),
    }
    batch = pa.RecordBatch.from_pydict(arrays)
    connection.register("points", pa.RecordBatchReader.from_batches(batch.schema, [batch]))
    try:
        connection.execute(
            f"INSERT INTO breakpoint SELECT timeline, {unix_ns}, nullif(step, -1), {_METHODS}[method]::e_attribution "
            "FROM points"
        )
    finally:
        connection.unregister("points")


def _main_threads(points: list[Breakpoint]) -> dict[int, int]:
    """By process: the thread with the most forward passes. Other threads work for it."""
    forwards = Counter((p.pid, p.tid) for p in points if p.method is Attribution.nvtx_forward)
    return {pid: tid for (pid, tid), _ in reversed(forwards.most_common())}


def _insert_threads(
    connection: duckdb.DuckDBPyConnection,
    source_id: int,
    timelines: dict[tuple[int, int], int],
    main_threads: dict[int, int],
) -> None:
    connection.execute("CREATE OR REPLACE TEMP TABLE pid_timeline (pid INTEGER, timeline INTEGER)")
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE thread_timeline (pid INTEGER, tid INTEGER, timeline INTEGER, own BOOLEAN)"
    )
    of_process = {pid: number for (pid, tid), number in timelines.items() if tid in (0, main_threads.get(pid))}
    for pid, number in of_process.items():
        connection.execute("INSERT INTO pid_timeline VALUES (?, ?)", [pid, number])
    threads = connection.execute("SELECT DISTINCT pid, tid FROM gpu_call WHERE source_id = ?", [source_id]).fetchall()
    for pid, tid in threads:
        own = timelines.get((pid, tid), timelines.get((pid, 0)))
        number = own if own is not None else of_process.get(pid)
        if number is not None:
            connection.execute("INSERT INTO thread_timeline VALUES (?, ?, ?, ?)", [pid, tid, number, own is not None])
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE pid_engine AS SELECT pid, coalesce(f.engine_id, e.engine_id) AS engine_id "
        "FROM gpu_process g LEFT JOIN (SELECT process_id, mode(engine_id) AS engine_id FROM forward GROUP BY ALL) AS f "
        "USING (process_id) LEFT JOIN engine e ON e.engine_id = g.process_id WHERE g.source_id = ?",
        [source_id],
    )
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE pid_without_calls AS SELECT DISTINCT pid FROM gpu_activity "
        "WHERE source_id = $1 AND pid IS NOT NULL AND pid NOT IN "
        "(SELECT pid FROM gpu_call WHERE source_id = $1 AND pid IS NOT NULL)",
        [source_id],
    )
