"""Error of derived KV windows against observed ones: `python bench/derived_windows.py TRACE [SPACING]`.

TRACE is of a recording with `kvtrace record --kv-level layer --layers all`. In its steps with CUDA graphs, full or
piecewise, the windows of layers that have no stamps there without `--layers` are forgotten, less those that kernels
observe, derived again as ingest does, and compared: of each kind, how far derived starts, ends and durations are from
observed ones. SPACING: as if one layer of so many, and the last, had stamps.
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb

from kvtrace.ingest.derive.requests import insert_windows_between, insert_writes_before_attention
from kvtrace.ingest.schema.trace import create_schema
from kvtrace.probes.device.model import SPACING, timing

_FORGET = """
    DELETE FROM kv_window w USING kv_layer l, forward f
    WHERE l.timed = 'outside_graphs' AND l.process_id = w.process_id AND l.layer = w.layer
        AND NOT contains(coalesce(l.in_kernel, ''), w.kind::VARCHAR)
        AND f.process_id = w.process_id AND f.step = w.step AND f.graph_mode IN ('full', 'piecewise')
"""
_COMPARE = """
    SELECT f.graph_mode, d.kind, count(*), quantile_cont(o.end_ns - o.start_ns, 0.5),
        quantile_cont(abs(d.start_ns - o.start_ns), [0.5, 0.99]), quantile_cont(abs(d.end_ns - o.end_ns), [0.5, 0.99]),
        quantile_cont(abs(d.end_ns - d.start_ns - o.end_ns + o.start_ns), [0.5, 0.99])
    FROM kv_window d JOIN trace.kv_window o USING (process_id, engine_id, step, layer, kind)
    JOIN forward f USING (process_id, engine_id, step)
    WHERE NOT d.observed GROUP BY ALL ORDER BY ALL
"""
Quantiles = tuple[float, float]
Row = tuple[str, str, int, float, Quantiles, Quantiles, Quantiles]


def compare(trace: Path, spacing: int) -> list[Row]:
    """Compare a trace's windows.

    Returns:
        A row a graph mode and kind: these, derived windows, the median duration of the observed ones, then the median
        and the 99th percentile of how far starts, ends and durations are from theirs, ns.
    """
    with duckdb.connect() as connection:
        create_schema(connection)
        connection.execute(f"ATTACH '{trace}' AS trace (READ_ONLY)")
        for table in ("kv_window", "kv_layer", "forward"):
            connection.execute(f"INSERT INTO {table} BY NAME FROM trace.{table}")
        counted = connection.execute("SELECT process_id, count(*) FROM kv_layer GROUP BY process_id").fetchall()
        for process, layers in counted:
            for layer, when in enumerate(timing(layers, (), alike=True, spacing=spacing)):
                connection.execute(
                    "UPDATE kv_layer SET timed = ? WHERE process_id = ? AND layer = ?", [when, process, layer]
                )
        connection.execute(_FORGET)
        insert_windows_between(connection)
        insert_writes_before_attention(connection)
        return connection.execute(_COMPARE).fetchall()


def main(trace: str, spacing: int = SPACING) -> None:
    for mode, kind, count, duration, *far in compare(Path(trace), spacing):
        texts = (
            f"{name} {p50:.0f}, {p99:.0f}" for name, (p50, p99) in zip(("start", "end", "duration"), far, strict=True)
        )
        print(f"{mode}, {kind}: {count:,} windows of {duration:.0f} ns; off by, p50 and p99: {'; '.join(texts)} ns")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
