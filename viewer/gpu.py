"""The GPU's part of a page: kernels and copies from a profile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from kvtrace.viewer.chunks import Writer, span
from kvtrace.viewer.contract import KERNEL_BINS, KERNELS
from kvtrace.viewer.source import Source, summarise

CHUNK_KERNELS = 65_536
OVERVIEW_BINS = 4096

_KERNELS = """
    SELECT a.start_ns - {origin} AS start_ns, greatest(a.end_ns, a.start_ns) - {origin} AS end_ns,
        a.kind::VARCHAR AS kind, coalesce(n.category::VARCHAR, a.kind::VARCHAR) AS category,
        coalesce(n.short_name, a.kind::VARCHAR) AS name, a.device, a.stream, t.step, l.layer, m.bytes,
        m.copy_kind::VARCHAR AS direction
    FROM gpu_activity a LEFT JOIN kernel_name n USING (kernel_name_id)
        LEFT JOIN gpu_attribution t USING (activity_id) LEFT JOIN gpu_layer l USING (activity_id)
        LEFT JOIN gpu_transfer m USING (activity_id)
    WHERE {where} ORDER BY a.start_ns, a.activity_id
"""

_BINS = """
    WITH own AS (
        SELECT a.start_ns - {origin} AS start_ns, a.end_ns - a.start_ns AS duration_ns,
            coalesce(n.category::VARCHAR, a.kind::VARCHAR) AS category
        FROM gpu_activity a LEFT JOIN kernel_name n USING (kernel_name_id)
            LEFT JOIN gpu_attribution t USING (activity_id)
        WHERE {where}
    ), whole AS (SELECT min(start_ns) AS low, (max(start_ns) - min(start_ns)) // {bins} + 1 AS width FROM own)
    SELECT low + (start_ns - low) // width * width AS start_ns, low + ((start_ns - low) // width + 1) * width AS end_ns,
        category, sum(duration_ns)::BIGINT AS busy_ns, count(*) AS activities
    FROM own, whole GROUP BY ALL ORDER BY start_ns, category
"""

_ACTIVE = """
    WITH own AS (
        SELECT device, greatest(start_ns, {low}) AS start_ns, least(end_ns, {high}) AS end_ns FROM kernels
    ), fresh AS (
        SELECT device, end_ns - greatest(start_ns, coalesce(max(end_ns) OVER before, start_ns)) AS ns FROM own
        WINDOW before AS (
            PARTITION BY device ORDER BY start_ns, end_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
    )
    SELECT coalesce(sum(greatest(ns, 0)), 0)::BIGINT AS active_ns, count(DISTINCT coalesce(device, -1)) AS gpus
    FROM fresh
"""
"""The time in which anything ran, GPU by GPU: what overlaps on several streams counts once."""


def export_kernels(
    source: Source, writer: Writer, engine: int, origin_ns: int, work: tuple[int, int] | None, *, alone: bool
) -> dict[str, Any] | None:
    """An engine's GPU activities, with those of no engine if it is `alone`; None without a profile.

    `work` is from when to when the engine worked: the model's loading before it says nothing about serving.
    """
    if not source.has("gpu_activity"):
        return None
    where = f"(t.engine_id = {engine}" + (" OR t.engine_id IS NULL)" if alone else ")")
    places = {"where": where, "origin": origin_ns}
    bins = source.table(_BINS.format(bins=OVERVIEW_BINS, **places))
    if not bins.num_rows:
        return None
    overview = writer.add("kernels-all", bins, KERNEL_BINS)
    kernels = source.table(_KERNELS.format(**places))
    details = writer.add_cut("kernels", kernels, CHUNK_KERNELS, KERNELS)
    whole = span(kernels)
    return {
        "total": kernels.num_rows,
        **whole,
        **_busy(kernels, work or (whole["from_ns"], whole["to_ns"])),
        "overview": overview,
        "details": details,
    }


def _busy(kernels: pa.Table, work: tuple[int, int]) -> dict[str, Any]:
    """Nanoseconds that each category ran while the engine worked, that any did on each GPU, and that were profiled."""
    starts, ends = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    low, high = max(work[0], int(starts[0])), min(work[1], int(ends.max()))
    inside = pa.array(np.maximum(0, np.minimum(ends, high) - np.maximum(starts, low)))
    busy = kernels.select(["category"]).append_column("ns", inside).group_by("category").aggregate([("ns", "sum")])
    found = busy.to_pydict()
    active = summarise(_ACTIVE.format(low=low, high=high), kernels=kernels).to_pylist()[0]
    return {
        "measured_ns": max(0, high - low),
        "busy_ns": dict(zip(found["category"], found["ns_sum"], strict=True)),
        **active,
    }
