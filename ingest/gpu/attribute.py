"""Gives activities their calls and their steps: thread and time of the call, then process and correlation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from kvtrace.ingest import columns
from kvtrace.ingest.gpu.align import Alignment
from kvtrace.ingest.gpu.enums import Attribution
from kvtrace.ingest.gpu.timeline import Range, Timeline, timelines

_ANY_THREAD = 0
"""Stands for a process's threads where the recording does not say which one it was."""
_METHODS = "[" + ", ".join(f"'{method.name}'" for method in Attribution) + "]"

_RECORDED = """
    SELECT g.pid, f.start_ns, f.end_ns, f.step, u.update_ns
    FROM gpu_process g JOIN forward f USING (process_id) LEFT JOIN step_update u USING (engine_id, step)
    WHERE g.source_id = ? ORDER BY ALL
"""

_CALL_STEP = """
CREATE OR REPLACE TEMP TABLE call_step AS
SELECT c.call_id, c.pid, c.host, c.correlation, b.step,
    CASE WHEN b.step IS NULL THEN NULL WHEN t.own THEN b.method ELSE 'other_thread' END::e_attribution AS method
FROM (SELECT * FROM gpu_call WHERE source_id = {source} AND api <> 'other' AND correlation <> 0) AS c
    LEFT JOIN thread_timeline t ON t.pid = c.pid AND t.tid = c.tid
    ASOF LEFT JOIN breakpoint b ON b.timeline = t.timeline AND b.at_ns <= c.start_ns
"""
_CALL_ALONE = """
CREATE OR REPLACE TEMP TABLE call_step AS
SELECT call_id, pid, host, correlation, NULL::INTEGER AS step, NULL::e_attribution AS method
FROM gpu_call WHERE source_id = {source} AND api <> 'other' AND correlation <> 0
"""
_ONCE = """
CREATE OR REPLACE TEMP TABLE call_step AS
SELECT DISTINCT ON (host, pid, correlation) * FROM call_step ORDER BY host, pid, correlation, call_id
"""
_BY_CALL = """
INSERT INTO gpu_attribution
SELECT a.activity_id, c.call_id, CASE WHEN c.step IS NOT NULL THEN e.engine_id END, c.step, c.method
FROM (SELECT activity_id, pid, host, correlation FROM gpu_activity
        WHERE source_id = {source} AND coalesce(pid, -1) NOT IN (SELECT pid FROM pid_without_calls)) AS a
    LEFT JOIN call_step c ON c.correlation = a.correlation AND c.pid IS NOT DISTINCT FROM a.pid
        AND c.host IS NOT DISTINCT FROM a.host
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
_RECORDED_AND_LOST = """
SELECT count(*) FROM (
    SELECT 1 FROM gpu_attribution WHERE call_id IS NULL AND step IS NULL
        AND EXISTS (SELECT 1 FROM gpu_process JOIN forward USING (process_id) WHERE source_id = {source})
    LIMIT 1
)
"""
# A launch whose call was lost (a profile's last buffers often are) ran after its stream's activity before it, so its
# step is not an earlier one; and after its own forward pass had begun on the host, so it is no later one than the last
# that had. Where both are the same step, it is that.
_BY_STREAM_ORDER = """
WITH orphan AS (
    SELECT a.pid, a.correlation, min(a.start_ns) AS start_ns, arg_min(a.stream, a.start_ns) AS stream,
        arg_min(a.context, a.start_ns) AS context
    FROM gpu_activity a JOIN gpu_attribution t USING (activity_id)
    WHERE a.source_id = {source} AND t.call_id IS NULL AND t.step IS NULL
        AND a.pid NOT IN (SELECT pid FROM pid_without_calls) AND a.correlation <> 0
    GROUP BY a.pid, a.correlation
), known AS (
    SELECT a.pid, a.context, a.stream, a.start_ns, t.step
    FROM gpu_activity a JOIN gpu_attribution t USING (activity_id)
    WHERE a.source_id = {source} AND t.step IS NOT NULL AND a.pid IN (SELECT pid FROM orphan)
), begun AS (
    SELECT g.pid, f.start_ns, f.step
    FROM gpu_process g JOIN forward f USING (process_id) WHERE g.source_id = {source}
), found AS (
    SELECT o.pid, o.correlation, k.step
    FROM orphan o
        ASOF JOIN known k
            ON k.pid = o.pid AND k.context = o.context AND k.stream = o.stream AND k.start_ns <= o.start_ns
        ASOF JOIN begun b ON b.pid = o.pid AND b.start_ns <= o.start_ns
    WHERE k.step = b.step
)
UPDATE gpu_attribution SET step = found.step, engine_id = e.engine_id, method = 'stream_order'
FROM found JOIN gpu_activity a USING (pid, correlation) LEFT JOIN pid_engine e USING (pid)
WHERE a.activity_id = gpu_attribution.activity_id AND a.source_id = {source}
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
    if _count(connection, _RECORDED_AND_LOST.format(source=source_id)):
        connection.execute(_BY_STREAM_ORDER.format(source=source_id))
    for table in (
        "call_step",
        "breakpoint",
        "thread_timeline",
        "pid_timeline",
        "pid_engine",
        "pid_without_calls",
        "thread_of_call",
    ):
        connection.execute(f"DROP TABLE {table}")


def _count(connection: duckdb.DuckDBPyConnection, sql: str) -> int:
    row = connection.execute(sql).fetchone()
    return int(row[0]) if row else 0


def _insert_timelines(connection: duckdb.DuckDBPyConnection, source_id: int, marked: Marked) -> bool:
    """Make the temporary tables that `_CALL_STEP` and the others join; returns whether any step is known."""
    by_nvtx = timelines(marked.ranges)
    with_nvtx = {timeline.pid for timeline in by_nvtx}
    rows = connection.execute(_RECORDED, [source_id]).fetchall()
    by_record = timelines(
        Range(
            pid, _ANY_THREAD, start_ns, max(start_ns, end_ns or start_ns), Attribution.recorded_forward, step, update_ns
        )
        for pid, start_ns, end_ns, step, update_ns in rows
        if pid not in with_nvtx and start_ns is not None
    )
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE breakpoint (timeline INTEGER, at_ns BIGINT, step INTEGER, method e_attribution)"
    )
    numbers = {}
    for number, timeline in enumerate((*by_nvtx, *by_record), 1):
        numbers[timeline.pid, timeline.tid] = number
        unix_ns = marked.alignment.sql("at_ns") if timeline.pid in with_nvtx else "at_ns"
        _insert_breakpoints(connection, number, timeline, unix_ns)
    _insert_threads(connection, source_id, numbers, _main_threads(by_nvtx))
    return bool(numbers)


def _insert_breakpoints(connection: duckdb.DuckDBPyConnection, number: int, timeline: Timeline, unix_ns: str) -> None:
    steps = np.array([-1 if step is None else step for step, _ in timeline.states], np.int32)
    methods = np.array([method or 0 for _, method in timeline.states], np.int32)
    arrays: dict[str, pa.Array[Any]] = {
        "at_ns": columns.numbers(np.array(timeline.at_ns, np.int64), pa.int64()),
        "step": columns.numbers(steps, pa.int32()),
        "method": columns.numbers(methods, pa.int32()),
    }
    batch = pa.RecordBatch.from_pydict(arrays)
    connection.register("points", pa.RecordBatchReader.from_batches(batch.schema, [batch]))
    try:
        connection.execute(
            f"INSERT INTO breakpoint SELECT {number}, {unix_ns}, nullif(step, -1), {_METHODS}[method]::e_attribution "
            "FROM points"
        )
    finally:
        connection.unregister("points")


def _main_threads(found: list[Timeline]) -> dict[int, int]:
    """Return each process's thread with the most forward passes. Other threads work for it."""
    most: dict[int, tuple[int, int]] = {}
    for timeline in found:
        forwards = sum(method is Attribution.nvtx_forward for _, method in timeline.states)
        if forwards > most.get(timeline.pid, (0, 0))[0]:
            most[timeline.pid] = (forwards, timeline.tid)
    return {pid: tid for pid, (_, tid) in most.items()}


def _insert_threads(
    connection: duckdb.DuckDBPyConnection,
    source_id: int,
    numbers: dict[tuple[int, int], int],
    main_threads: dict[int, int],
) -> None:
    connection.execute("CREATE OR REPLACE TEMP TABLE pid_timeline (pid INTEGER, timeline INTEGER)")
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE thread_timeline (pid INTEGER, tid INTEGER, timeline INTEGER, own BOOLEAN)"
    )
    of_process = {pid: number for (pid, tid), number in numbers.items() if tid in (_ANY_THREAD, main_threads.get(pid))}
    for pid, number in of_process.items():
        connection.execute("INSERT INTO pid_timeline VALUES (?, ?)", [pid, number])
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE thread_of_call AS SELECT DISTINCT pid, tid FROM gpu_call WHERE source_id = ?",
        [source_id],
    )
    threads = connection.execute("FROM thread_of_call").fetchall()
    for pid, tid in threads:
        own = numbers.get((pid, tid), numbers.get((pid, _ANY_THREAD)))
        chosen = own if own is not None else of_process.get(pid)
        if chosen is not None:
            connection.execute("INSERT INTO thread_timeline VALUES (?, ?, ?, ?)", [pid, tid, chosen, own is not None])
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE pid_engine AS SELECT pid, coalesce(f.engine_id, e.engine_id) AS engine_id "
        "FROM gpu_process g LEFT JOIN (SELECT process_id, mode(engine_id) AS engine_id FROM forward GROUP BY ALL) AS f "
        "USING (process_id) LEFT JOIN engine e ON e.engine_id = g.process_id WHERE g.source_id = ?",
        [source_id],
    )
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE pid_without_calls AS SELECT pid FROM gpu_process "
        "WHERE source_id = $1 AND pid NOT IN (SELECT pid FROM thread_of_call WHERE pid IS NOT NULL)",
        [source_id],
    )
