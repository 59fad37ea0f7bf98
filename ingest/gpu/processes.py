"""Matches profiled processes with recorded ones: by pid, if profile and recording were made at the same time."""

from __future__ import annotations

import duckdb

_SPAN = "SELECT min(start_ns), max(end_ns) FROM gpu_call WHERE source_id = $1"
_SPAN_OF_GPU = "SELECT min(start_ns), max(end_ns) FROM gpu_activity WHERE source_id = $1"
_RECORDED = """
    SELECT min(start_ns), max(end_ns) FROM (
        SELECT min(start_ns) AS start_ns, max(end_ns) AS end_ns FROM forward
        UNION ALL SELECT min(start_ns), max(scheduled_ns) FROM step_schedule
    )
"""
_PIDS = """
    SELECT DISTINCT pid FROM (
        SELECT pid FROM gpu_activity WHERE source_id = $1 UNION SELECT pid FROM gpu_call WHERE source_id = $1
    ) WHERE pid IS NOT NULL ORDER BY pid
"""

_SEVERAL_HOSTS = "SELECT pid FROM gpu_call WHERE source_id = $1 GROUP BY pid HAVING count(DISTINCT host) > 1"


def match_processes(connection: duckdb.DuckDBPyConnection, source_id: int, name: str) -> list[str]:
    """Fill table `gpu_process` for a source; returns warnings."""
    pids = [row[0] for row in connection.execute(_PIDS, [source_id]).fetchall()]
    recorded = connection.execute("SELECT pid, process_id, roles FROM process ORDER BY process_id").fetchall()
    warnings = []
    if recorded and pids and not _overlap(connection, source_id):
        warnings.append(
            f"{name} and the recording were not made at the same time, so its kernels belong to none of the recorded "
            "steps; is it of another run?"
        )
        recorded = []
    by_pid: dict[int, list[int]] = {}
    several = {row[0] for row in connection.execute(_SEVERAL_HOSTS, [source_id]).fetchall()}
    for pid, process_id, _ in recorded:
        if pid not in several:  # which host's it is cannot be told
            by_pid.setdefault(pid, []).append(process_id)
    found = {pid: (by_pid[pid][0], "pid") for pid in pids if len(by_pid.get(pid, ())) == 1}
    workers = [process_id for _, process_id, roles in recorded if "worker" in (roles or "").split(",")]
    if not found and len(pids) == 1 and len(workers) == 1:  # a container's pids are others than the host's
        found[pids[0]] = (workers[0], "only_one")
    for pid in pids:
        process_id, matched_by = found.get(pid, (None, None))
        connection.execute("INSERT INTO gpu_process VALUES (?, ?, ?, ?)", [source_id, pid, process_id, matched_by])
    if recorded and pids and not found:
        warnings.append(f"{name}: none of its processes with CUDA calls ({_few(pids)}) was recorded by kvtrace")
    return warnings


def _overlap(connection: duckdb.DuckDBPyConnection, source_id: int) -> bool:
    start, end = connection.execute(_RECORDED).fetchone() or (None, None)
    if start is None or end is None:
        return True
    for sql in (_SPAN, _SPAN_OF_GPU):
        first, last = connection.execute(sql, [source_id]).fetchone() or (None, None)
        if first is not None and first <= end and start <= last:
            return True
    return False


def _few(pids: list[int]) -> str:
    return ", ".join(map(str, pids[:5])) + (", ..." if len(pids) > 5 else "")
