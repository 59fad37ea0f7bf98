"""The KV map of a page: the state and owner of every block over time, in levels of detail.

A level cuts the recording into tiles of equal time (the finest: of equal size). A tile of a coarse level holds every
so many blocks, and of each block the last change in each of `BINS` bins; the finest level holds everything.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from kvtrace.viewer.chunks import Reference, Writer
from kvtrace.viewer.contract import BLOCK_STATES, BLOCKS
from kvtrace.viewer.source import Source

BINS = 4096
MAP_ROWS = 512
TILE_ROWS = 300_000
FINE_ROWS = 100_000
FACTOR = 16
"""Tiles of a level that one of the level above covers."""

_CHANGES = """
    SELECT block_id::INTEGER AS block, (time_ns - {origin}) // 1000 AS time_us,
        (list_position({states}, state) - 1)::TINYINT AS state, coalesce(request, -1)::INTEGER AS owner,
        evicted::TINYINT AS evicted
    FROM block_state WHERE engine_id = {engine} ORDER BY time_us, place
"""


class Changes:
    """Changes of an engine's blocks, in order of time."""

    def __init__(self, source: Source, engine: int, origin_ns: int) -> None:
        table = source.table(_CHANGES.format(engine=engine, origin=origin_ns, states=list(BLOCK_STATES)))
        self.block, self.time_us, self.state, self.owner, self.evicted = (
            table[name].to_numpy() for name in ("block", "time_us", "state", "owner", "evicted")
        )
        self.blocks = int(self.block.max()) + 1 if len(self) else 0

    def __len__(self) -> int:
        return len(self.time_us)


def export_overview(writer: Writer, changes: Changes) -> list[list[Reference]]:
    """The coarse levels, coarsest first; none if the recording is small."""
    levels: list[list[Reference]] = []
    tiles = 1
    while len(changes) > FACTOR * tiles * FINE_ROWS or (tiles == 1 and len(changes) > TILE_ROWS):
        edges = np.linspace(changes.time_us[0], changes.time_us[-1] + 1, tiles + 1).astype(np.int64)
        levels.append(_level(writer, f"map{len(levels)}", changes, edges, _sample(changes, tiles)))
        tiles *= FACTOR
    return levels


def export_detail(writer: Writer, changes: Changes) -> list[Reference]:
    """Every change of every block."""
    if not len(changes):
        return []
    # Each tile also holds the state of all blocks at its start.
    rows = max(FINE_ROWS, 4 * changes.blocks)
    edges = np.append(changes.time_us[::rows], changes.time_us[-1] + 1)
    return _level(writer, "map", changes, np.unique(edges), None)


def _sample(changes: Changes, tiles: int) -> Any:
    """The blocks that a level shows: so few that its tiles stay small, evenly spread."""
    a_block = min(BINS, len(changes) / tiles / changes.blocks) + 1
    rows = min(changes.blocks, MAP_ROWS, max(64, int(TILE_ROWS / a_block)))
    return ((np.arange(rows) + 0.5) * changes.blocks / rows).astype(np.int64)


def _level(writer: Writer, name: str, changes: Changes, edges: Any, blocks: Any) -> list[Reference]:
    """Tiles between consecutive `edges`; of all blocks, or of some and those with a row a bin."""
    shown = np.full(changes.blocks, blocks is None)
    if blocks is not None:
        shown[blocks] = True
    latest = np.full(changes.blocks, -1, dtype=np.int64)
    bounds = np.searchsorted(changes.time_us, edges)
    found: list[Reference] = []
    for number, (start_us, end_us) in enumerate(pairwise(edges)):
        inside = np.arange(bounds[number], bounds[number + 1])
        rows = np.concatenate((latest[(latest >= 0) & shown], inside[shown[changes.block[inside]]]))
        rows = rows[np.lexsort((rows, changes.block[rows]))]
        if blocks is not None:
            rows = _thin(changes, rows, start_us, end_us)
        latest[changes.block[inside]] = inside
        facts = {"from_ns": int(start_us) * 1000, "to_ns": int(end_us) * 1000}
        found += writer.add(f"{name}-{number}", _table(changes, rows), BLOCKS, **facts)
    return found


def _thin(changes: Changes, rows: Any, start_us: int, end_us: int) -> Any:
    """Keep the last change of each block in each bin. `rows` are ordered by block and time."""
    time = np.maximum(changes.time_us[rows], start_us - 1)
    bins = (time - start_us) * BINS // max(1, end_us - start_us)
    block = changes.block[rows]
    last = np.ones(len(rows), dtype=bool)
    last[:-1] = (bins[1:] != bins[:-1]) | (block[1:] != block[:-1])
    return rows[last]


def _table(changes: Changes, rows: Any) -> pa.Table:
    return pa.table(
        {
            "block": changes.block[rows].astype(np.int64),
            "time_us": changes.time_us[rows],
            "state": changes.state[rows],
            "owner": changes.owner[rows],
            "evicted": changes.evicted[rows],
        }
    )
