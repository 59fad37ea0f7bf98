"""What the GPU did, for a page: kernels and copies from a profile, and the close-ups of KV accesses in single steps."""

from __future__ import annotations

from typing import Any

from kvtrace.viewer.chunks import Reference, Writer
from kvtrace.viewer.source import Source

CHUNK_KERNELS = 65_536
OVERVIEW_BINS = 4096
CLOSE_UPS = 24

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

_WINDOWS = """
    SELECT step, process_id, layer, kind::VARCHAR AS kind, start_ns - {origin} AS start_ns, end_ns - {origin} AS end_ns
    FROM kv_window WHERE engine_id = {engine} AND step = {step} ORDER BY start_ns
"""

_ACCESSES = """
    SELECT layer, block_id AS block, request, kind::VARCHAR AS kind, observed, min(start_ns) - {origin} AS start_ns,
        max(end_ns) - {origin} AS end_ns, count(*) AS accesses
    FROM kv_access WHERE engine_id = {engine} AND step = {step} GROUP BY ALL ORDER BY start_ns, layer, block
"""

_STEPS_WITH_ACCESSES = """
    WITH seen AS ({steps}), counted AS (SELECT step, row_number() OVER (ORDER BY step) - 1 AS n FROM seen)
    SELECT step, (SELECT count(*) FROM counted) AS total FROM counted
    WHERE n % (SELECT greatest(1, ceil(count(*) / {most}))::BIGINT FROM counted) = 0 ORDER BY step
"""


def export_kernels(
    source: Source, writer: Writer, engine: int, origin_ns: int, *, alone: bool
) -> dict[str, Any] | None:
    """An engine's GPU activities, with those of no engine if it is `alone`; None without a profile."""
    if not source.has("gpu_activity"):
        return None
    where = f"(t.engine_id = {engine}" + (" OR t.engine_id IS NULL)" if alone else ")")
    places = {"where": where, "origin": origin_ns}
    bins = source.table(_BINS.format(bins=OVERVIEW_BINS, **places))
    if not bins.num_rows:
        return None
    overview = writer.add("kernels-all", bins, ("start_ns",))
    kernels = source.table(_KERNELS.format(**places))
    details = writer.add_cut("kernels", kernels, CHUNK_KERNELS, ("start_ns",))
    return {"total": kernels.num_rows, "overview": overview, "details": details}


def export_close_ups(source: Source, writer: Writer, engine: int, origin_ns: int) -> dict[str, Any]:
    """The KV accesses of some steps, evenly spread; `total` says how many have any."""
    seen = [
        f"SELECT DISTINCT step FROM {table} WHERE engine_id = {engine}"
        for table in ("kv_window", "tile_step")
        if source.has(table, f"engine_id = {engine}")
    ]
    if not seen:
        return {"total": 0, "steps": []}
    chosen = source.rows(_STEPS_WITH_ACCESSES.format(steps=" UNION ".join(seen), most=CLOSE_UPS))
    steps = [_close_up(source, writer, engine, row["step"], origin_ns) for row in chosen]
    return {"total": chosen[0]["total"] if chosen else 0, "steps": [step for step in steps if step["accesses"]]}


def _close_up(source: Source, writer: Writer, engine: int, step: int, origin_ns: int) -> dict[str, Any]:
    places = {"engine": engine, "step": step, "origin": origin_ns}
    accesses: list[Reference] = writer.add(f"access-{step}", source.table(_ACCESSES.format(**places)), ("start_ns",))
    windows: list[Reference] = []
    if source.has("kv_window", f"engine_id = {engine}"):
        windows = writer.add(f"window-{step}", source.table(_WINDOWS.format(**places)), ("start_ns",))
    return {"step": step, "accesses": accesses, "windows": windows}
