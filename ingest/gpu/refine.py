"""Moves a profile's times so that its kernels lie in the GPU windows that kvtrace timed around them.

Both are times of the GPU, so this needs no reading of a host's clock on the way: marks and ranges come out late by what
a call into the profiler takes, 4 to 6 us where that was measured.
"""

from __future__ import annotations

import duckdb
import numpy as np

from kvtrace.ingest.gpu import align
from kvtrace.ingest.gpu.enums import AlignmentMethod
from kvtrace.ingest.gpu.layers import find_layers

FEWEST_WINDOWS = 64
LARGEST_SHIFT_NS = 100_000
"""Beyond that kernels were laid on the wrong windows."""

_SHIFTS = """
    SELECT (w.start_ns - w.kernel_start_ns + w.end_ns - w.kernel_end_ns) // 2 AS shift_ns
    FROM kv_window_kernel w WHERE w.process_id IN (SELECT process_id FROM gpu_process WHERE source_id = ?)
"""
_TIMED = """
    SELECT table_name, list(column_name) FILTER (column_name IN ('start_ns', 'end_ns', 'time_ns'))
    FROM duckdb_columns() WHERE table_name IN (SELECT table_name FROM duckdb_tables() WHERE NOT temporary)
    GROUP BY table_name
    HAVING bool_or(column_name = 'source_id') AND bool_or(column_name IN ('start_ns', 'end_ns', 'time_ns'))
"""


def refine(connection: duckdb.DuckDBPyConnection, source_id: int) -> bool:
    """Shift a source's times by what kernels and windows agree on. False: they are too few, or nothing to shift."""
    shifts = np.asarray(connection.execute(_SHIFTS, [source_id]).fetchnumpy()["shift_ns"], np.int64)
    if len(shifts) < FEWEST_WINDOWS:
        return False
    shift_ns = int(np.median(shifts))
    if not shift_ns or abs(shift_ns) > LARGEST_SHIFT_NS:
        return False
    for table, times in connection.execute(_TIMED).fetchall():
        changes = ", ".join(f"{time} = {time} + {shift_ns}" for time in times)
        connection.execute(f"UPDATE {table} SET {changes} WHERE source_id = {source_id}")
    connection.execute(
        "INSERT INTO alignment SELECT source_id, ?::VARCHAR, true, offset_ns + ?, reference_ns, drift_ppb, ?, ?, ?, ? "
        "FROM alignment WHERE source_id = ? AND applied",
        [AlignmentMethod.kv_windows.name, shift_ns, *align.figures(shifts - shift_ns), source_id],
    )
    connection.execute(
        "UPDATE alignment SET applied = false WHERE source_id = ? AND method <> 'kv_windows'", [source_id]
    )
    connection.execute(
        "DELETE FROM gpu_layer WHERE activity_id IN (SELECT activity_id FROM gpu_activity WHERE source_id = ?)",
        [source_id],
    )
    find_layers(connection, source_id)
    return True
