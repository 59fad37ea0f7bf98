"""How far derived KV windows are from observed ones: `python bench/derived_windows.py TRACE`.

TRACE is of a recording with `kvtrace record --kv-level layer --layers all`. In its steps in full CUDA graphs the
windows of layers that have no stamps there without `--layers` are forgotten, derived again as ingest does, and
compared: of each kind, how far derived starts, ends and durations are from observed ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb

from kvtrace.ingest.derive import insert_windows_between
from kvtrace.ingest.schema import create_schema
from kvtrace.probes.device.model import timing

_FORGET = """
    DELETE FROM kv_window w USING kv_layer l, forward f
    WHERE l.timed = 'outside_graphs' AND l.process_id = w.process_id AND l.layer = w.layer
        AND f.process_id = w.process_id AND f.step = w.step AND f.graph_mode IN ('full', 'piecewise')
"""
_COMPARE = """
    SELECT d.kind, count(*), quantile_cont(o.end_ns - o.start_ns, 0.5),
        quantile_cont(abs(d.start_ns - o.start_ns), [0.5, 0.99]), quantile_cont(abs(d.end_ns - o.end_ns), [0.5, 0.99]),
        quantile_cont(abs(d.end_ns - d.start_ns - o.end_ns + o.start_ns), [0.5, 0.99])
    FROM kv_window d JOIN trace.kv_window o USING (process_id, engine_id, step, layer, kind)
    WHERE NOT d.observed GROUP BY d.kind ORDER BY d.kind
"""
Quantiles = tuple[float, float]
Row = tuple[str, int, float, Quantiles, Quantiles, Quantiles]


def compare(trace: Path) -> list[Row]:
    """Compare a trace's windows.

    Returns:
        A row a kind: the kind, its derived windows, the median duration of the observed ones, then the median and the
        99th percentile of how far starts, ends and durations are from theirs, ns.
    """
    with duckdb.connect() as connection:
        create_schema(connection)
        connection.execute(f"ATTACH '{trace}' AS trace (READ_ONLY)")
        for table in ("kv_window", "kv_layer", "forward"):
            connection.execute(f"INSERT INTO {table} BY NAME FROM trace.{table}")
        counted = connection.execute("SELECT process_id, count(*) FROM kv_layer GROUP BY process_id").fetchall()
        for process, layers in counted:
            for layer, when in enumerate(timing(layers, (), alike=True)):
                connection.execute(
                    "UPDATE kv_layer SET timed = ? WHERE process_id = ? AND layer = ?", [when, process, layer]
                )
        connection.execute(_FORGET)
        insert_windows_between(connection)
        return connection.execute(_COMPARE).fetchall()


def main() -> None:
    for kind, count, duration, *far in compare(Path(sys.argv[1])):
        texts = (
            f"{name} {p50:.0f}, {p99:.0f}" for name, (p50, p99) in zip(("start", "end", "duration"), far, strict=True)
        )
        print(f"{kind}: {count:,} windows of {duration:.0f} ns; off by, p50 and p99: {'; '.join(texts)} ns")


if __name__ == "__main__":
    main()
