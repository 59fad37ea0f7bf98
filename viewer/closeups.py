"""Close-ups of a page: which layer read and wrote which KV blocks in single steps, in two levels of detail.

A step with tiles can have hundreds of thousands of rows, once a layer, block, request and kind. Those are cut by time,
so that a view loads what is in sight; above them lies a grid of groups of blocks by time, in which a row is a stretch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from kvtrace.viewer.chunks import Reference, Writer, span
from kvtrace.viewer.contract import ACCESS_BINS, ACCESS_BLOCKS, ACCESSES, WINDOWS
from kvtrace.viewer.source import Source, summarise

CLOSE_UPS = 24
ROWS = 2_000_000
"""Rows that the close-ups of an engine may have together; the first one is there however many it has."""

CHUNK_ROWS = 65_536
OVERVIEW_FROM = 100_000
"""Rows of a step from which on there is an overview."""

GROUPS, BINS = 256, 1024

_WINDOWS = """
    SELECT layer, kind::VARCHAR AS kind, start_ns - {origin} AS start_ns, end_ns - {origin} AS end_ns,
        observed IS NOT false AS observed
    FROM kv_window WHERE engine_id = {engine} AND step = {step} ORDER BY start_ns
"""

_LAYERS = """
    SELECT layer, kind, min(start_ns) AS start_ns, max(end_ns) AS end_ns, true AS observed
    FROM accesses GROUP BY ALL ORDER BY start_ns
"""
"""Windows of a step that has tiles: each lasts from a layer's first access of a kind to its last."""

_ACCESSES = """
    SELECT layer, block_id AS block, request, kind::VARCHAR AS kind, observed, min(start_ns) - {origin} AS start_ns,
        coalesce(max(end_ns), min(start_ns)) - {origin} AS end_ns, count(*) AS accesses
    FROM kv_access WHERE engine_id = {engine} AND step = {step} AND start_ns IS NOT NULL AND block_id IS NOT NULL
    GROUP BY ALL ORDER BY start_ns, layer, block
"""

_STEPS = """
    WITH seen AS ({steps}), counted AS (SELECT step, row_number() OVER (ORDER BY step) - 1 AS n FROM seen)
    SELECT step, (SELECT count(*) FROM counted) AS total FROM counted
    WHERE n % (SELECT greatest(1, ceil(count(*) / {most}))::BIGINT FROM counted) = 0 ORDER BY step
"""


def export_close_ups(source: Source, writer: Writer, engine: int, origin_ns: int) -> dict[str, Any]:
    """The KV accesses of some steps, evenly spread; `total` says how many have any."""
    seen = [
        f"SELECT DISTINCT step FROM {table} WHERE engine_id = {engine}"
        for table in ("kv_window", "tile_step")
        if source.has(table, f"engine_id = {engine}")
    ]
    chosen = source.rows(_STEPS.format(steps=" UNION ".join(seen), most=CLOSE_UPS)) if seen else []
    steps, room = [], ROWS
    for row in spread(chosen):
        if room <= 0:
            break
        step = _close_up(source, writer, engine, row["step"], origin_ns)
        room -= sum(reference["rows"] for reference in step["accesses"])
        if step["accesses"]:
            steps.append(step)
    steps.sort(key=lambda step: int(step["step"]))
    return {"total": chosen[0]["total"] if chosen else 0, "steps": steps}


def spread(items: list[Any]) -> list[Any]:
    """The first one, then halves, quarters and so on: cut off anywhere, what is left is spread over the whole."""
    places: list[int] = []
    stride = 1 << max(0, len(items) - 1).bit_length()
    while stride:
        places += [place for place in range(0, len(items), stride) if place not in places]
        stride //= 2
    return [items[place] for place in places]


def _close_up(source: Source, writer: Writer, engine: int, step: int, origin_ns: int) -> dict[str, Any]:
    places = {"engine": engine, "step": step, "origin": origin_ns}
    accesses = source.table(_ACCESSES.format(**places))
    windows = source.table(_WINDOWS.format(**places))
    if not windows.num_rows and accesses.num_rows:
        windows = summarise(_LAYERS, accesses=accesses)
    blocks = np.unique(accesses["block"].to_numpy())
    overview: list[Reference] = []
    if accesses.num_rows > OVERVIEW_FROM:
        grid = summarise("FROM grid ORDER BY start_ns", grid=_grid(accesses, blocks))
        overview = writer.add(f"access-all-{step}", grid, ACCESS_BINS, **span(grid))
    return {
        "step": step,
        "blocks": writer.add(f"access-blocks-{step}", pa.table({"block": pa.array(blocks)}), ACCESS_BLOCKS),
        "overview": overview,
        "accesses": writer.add_cut(f"access-{step}", accesses, CHUNK_ROWS, ACCESSES),
        "windows": writer.add(f"window-{step}", windows, WINDOWS),
    }


def _grid(accesses: pa.Table, blocks: Any) -> pa.Table:
    """Stretches of time in which any block of a group of neighbours is read or written: a row each."""
    start, end = accesses["start_ns"].to_numpy(), accesses["end_ns"].to_numpy()
    low, width = int(start.min()), max(1, -(-(int(end.max()) - int(start.min()) + 1) // BINS))
    group = np.searchsorted(blocks, accesses["block"].to_numpy()) * GROUPS // max(GROUPS, len(blocks))
    first, last = (start - low) // width, -(-(end - low) // width)
    last = np.maximum(last, first + 1)
    count, kinds = accesses["accesses"].to_numpy(), accesses["kind"].to_numpy(zero_copy_only=False)
    edges = np.searchsorted(np.arange(len(blocks)) * GROUPS // max(GROUPS, len(blocks)), np.arange(GROUPS + 1))
    parts = []
    for kind in np.unique(kinds):
        own = kinds == kind
        running = np.zeros((GROUPS, BINS + 2), dtype=np.int64)
        np.add.at(running, (group[own], first[own]), 1)
        np.add.at(running, (group[own], last[own]), -1)
        busy = np.cumsum(running, axis=1) > 0
        begun = np.zeros((GROUPS, BINS + 3), dtype=np.int64)
        np.add.at(begun[:, 1:], (group[own], first[own]), count[own])
        begun = np.cumsum(begun, axis=1)
        turns = np.diff(busy.astype(np.int8), axis=1, prepend=0)
        (row, begin), (_, stop) = np.nonzero(turns == 1), np.nonzero(turns == -1)
        columns = {"block": blocks[edges[row]], "last_block": blocks[edges[row + 1] - 1]}
        columns |= {"start_ns": low + begin * width, "end_ns": low + stop * width}
        columns |= {"accesses": begun[row, stop] - begun[row, begin], "kind": np.full(len(row), kind)}
        parts.append(pa.table(columns))
    return pa.concat_tables(parts)
