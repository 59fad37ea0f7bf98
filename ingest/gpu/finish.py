"""Last stage of loading a profile: processes, steps, layers, and what each join matched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from kvtrace.ingest.gpu import align
from kvtrace.ingest.gpu.attribute import Marked, attribute
from kvtrace.ingest.gpu.copies import match_copies
from kvtrace.ingest.gpu.enums import AlignmentMethod
from kvtrace.ingest.gpu.layers import find_layers
from kvtrace.ingest.gpu.refine import refine
from kvtrace.ingest.guard import naming
from kvtrace.ingest.importers.importer import Join, Target

_JOINS = {
    "gpu_activity -> gpu_call": "SELECT count(call_id), count(*) FROM gpu_attribution",
    "gpu_activity -> step": "SELECT count(step), count(*) FROM gpu_attribution",
    "layer's kernel -> layer": (
        "SELECT count(layer), count(*) FROM gpu_activity JOIN kernel_name USING (kernel_name_id) "
        "LEFT JOIN gpu_layer USING (activity_id) WHERE layer_role IS NOT NULL"
    ),
}
_OF_RECORDINGS = ("gpu_activity -> step", "layer's kernel -> layer")
"""Joins of which a profile without a recording beside it has nothing to say."""
_WINDOWS = """
    SELECT count(k.step), count(*) FROM kv_window w LEFT JOIN kv_window_kernel k
    USING (process_id, engine_id, step, layer, kind) WHERE w.observed IS NOT false
"""
_TRANSFERS = """
    SELECT count(c.transfer), count(*)
    FROM (FROM transfer WHERE from_tier = 'gpu' OR to_tier = 'gpu') t
        LEFT JOIN (SELECT DISTINCT process_id, transfer FROM gpu_copy_transfer) c USING (process_id, transfer)
"""


def finish_profiles(target: Target, paths: Mapping[int, Path]) -> list[Join]:
    """Join all profiles that were read to calls, steps, layers and transfers; returns what each join matched.

    Raises:
        KvtraceError: A profile holds values that no table takes; its path is named.
    """
    for source_id, marked in target.profiles.items():
        target.progress("steps and layers", 0, 0)
        with naming(paths[source_id]):
            finish_source(target.connection, source_id, marked)
            if not refine(target.connection, source_id):
                check_windows(target.connection, source_id)
            match_copies(target.connection, source_id)  # after the clocks are as right as they get
    return count_joins(target.connection) if target.profiles else []


def finish_source(connection: duckdb.DuckDBPyConnection, source_id: int, marked: Marked) -> None:
    """Attribute a source's activities to calls, steps and layers."""
    attribute(connection, source_id, marked)
    find_layers(connection, source_id)


def check_windows(connection: duckdb.DuckDBPyConnection, source_id: int) -> None:
    """Keep how far kernels reach out of kvtrace's GPU windows, as a check of both clocks, in table `alignment`.

    Of windows that kernels kept themselves, how far those reach out of the kernels.
    """
    if not connection.execute("SELECT 1 FROM kv_window LIMIT 1").fetchall():
        return
    rows: Any = connection.execute(
        "SELECT CASE WHEN contains(coalesce(l.in_kernel, ''), w.kind::VARCHAR) "
        "THEN greatest(0, w.start_delta_ns, w.end_delta_ns) ELSE greatest(0, -w.start_delta_ns, -w.end_delta_ns) END "
        "FROM kv_window_kernel w LEFT JOIN kv_layer l USING (process_id, layer) WHERE w.process_id IN "
        "(SELECT process_id FROM gpu_process WHERE source_id = ?)",
        [source_id],
    ).fetchnumpy()
    outside = np.asarray(next(iter(rows.values())), np.int64)
    if len(outside):
        align.insert_check(connection, source_id, AlignmentMethod.kv_windows, outside)


def _has_steps(connection: duckdb.DuckDBPyConnection) -> bool:
    """Return whether something beside profiles says what ran in which step."""
    return bool(
        connection.execute("(FROM step_schedule SELECT 1) UNION ALL (FROM forward SELECT 1) LIMIT 1").fetchall()
    )


def count_joins(connection: duckdb.DuckDBPyConnection) -> list[tuple[str, int, int]]:
    """Name, matched and unmatched rows of the joins of profiles; kept in table `join_count`."""
    counts = []
    joins = dict(_JOINS)
    if connection.execute("SELECT 1 FROM kv_window LIMIT 1").fetchone():
        joins["kv_window -> gpu_kernel"] = _WINDOWS
    if connection.execute("SELECT 1 FROM transfer_submit LIMIT 1").fetchone():
        joins["transfer -> gpu_copy"] = _TRANSFERS
    for name, sql in joins.items():
        matched, total = connection.execute(sql).fetchone() or (0, 0)
        if name in _OF_RECORDINGS and not matched and not _has_steps(connection):
            continue
        counts.append((name, matched, total - matched))
        connection.execute("INSERT INTO join_count VALUES (?, ?, ?)", list(counts[-1]))
    return counts
