from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from kvtrace.viewer import blocks
from kvtrace.viewer.chunks import MemorySink, Writer
from kvtrace.viewer.columns import unpack
from kvtrace.viewer.source import Source

from .exported import ROOM, Exported
from .pages import rows
from .simulate import EPOCH_NS, create_trace, insert


def replay(trace: Path) -> dict[int, list[tuple[int, int, int]]]:
    """Each block's (microsecond, state, owner) after each moment that changed it, by a plain replay."""
    references: dict[int, int] = defaultdict(int)
    owners: dict[int, int] = defaultdict(lambda: -1)
    findable: set[int] = set()
    found: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    for time_ns, block, op, count, request in rows(
        trace, "SELECT time_ns, block_id, op::VARCHAR, ref_count, request FROM block_event ORDER BY rowid"
    ):
        references[block] = count
        if op in {"allocate", "hit"}:
            owners[block] = request
        if op == "cache":
            findable.add(block)
        elif op == "evict":
            findable.discard(block)
        state = 3 if count > 1 else 2 if count else int(block in findable)
        found[block][time_ns - EPOCH_NS] = (state, owners[block])
    changes = defaultdict(list)
    for block, moments in found.items():
        for time_ns, now in moments.items():
            if not changes[block] or changes[block][-1][1:] != now:
                changes[block].append((time_ns // 1000, *now))
    return changes


def read(chunks: dict[str, str], reference: dict[str, Any]) -> dict[int, list[tuple[int, int, int]]]:
    found = defaultdict(list)
    columns = unpack(chunks[reference["id"]]).to_pydict()
    for block, *change in zip(*(columns[name] for name in ("block", "time_us", "state", "owner")), strict=True):
        found[block].append(tuple(change))
    return found


def test_the_map_holds_what_a_replay_of_the_block_events_gives(trace: Path) -> None:
    exported = Exported(trace)
    (reference,) = exported.engine["blocks"]["levels"][-1]
    assert read(exported.chunks, reference) == replay(trace)


def test_every_tile_tells_the_state_at_its_start_and_all_later_changes(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "FINE_ROWS", 400)
    exported, truth = Exported(trace), replay(trace)
    tiles = exported.engine["blocks"]["levels"][-1]
    assert len(tiles) > 5
    for tile in tiles:
        found, start, end = read(exported.chunks, tile), tile["from_ns"] // 1000, tile["to_ns"] // 1000
        for block, changes in truth.items():
            before = [change for change in changes if change[0] < start][-1:]
            assert found.get(block, []) == before + [change for change in changes if start <= change[0] < end]


def test_a_coarse_level_shows_some_blocks_and_the_last_change_of_each_bin(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TILE_ROWS", 2000), ("FINE_ROWS", 400), ("BINS", 16), ("MAP_ROWS", 10)):
        monkeypatch.setattr(blocks, name, value)
    sink = MemorySink(ROOM)
    with Source(trace) as source:
        changes = blocks.Changes(source, 1, EPOCH_NS)
    first, *_ = blocks.export_overview(Writer(sink, "x"), changes)
    (tile,) = first
    found, truth = read(sink.chunks, tile), replay(trace)
    edges = np.linspace(tile["from_ns"] // 1000, tile["to_ns"] // 1000, 17)
    assert 5 < len(found) <= 64
    for block, moments in found.items():
        assert set(moments) <= set(truth[block])
        bins = [int(np.searchsorted(edges, time, "right")) for time, *_ in moments]
        assert len(bins) == len(set(bins))
        assert moments[-1] == truth[block][-1]


def test_a_reset_of_the_prefix_cache_empties_every_free_block(tmp_path: Path) -> None:
    path = create_trace(tmp_path / "trace.duckdb")
    with duckdb.connect(str(path)) as connection:
        (last,) = connection.sql("SELECT max(time_ns) FROM block_event").fetchall()[0]
        insert(connection, "block_event", [{"engine_id": 1, "time_ns": last + 10_000, "op": "reset", "pool": 0}])
    exported = Exported(path)
    found = read(exported.chunks, exported.engine["blocks"]["levels"][-1][0])
    assert {moments[-1][1] for moments in found.values()} == {0}
