"""Close-ups of steps with many tiles: what the coarse level keeps, and what a reader sees of both."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

from kvtrace.viewer import closeups

from .chromium import Chromium
from .exported import Exported
from .pages import make_page, wait_for_text
from .simulate import create_trace

LAYERS, HEADS, ROWS, BLOCKS = 4, 2, 16, 6
STEP, TILE_NS, LAYER_NS = 300, 200, 4000


@pytest.fixture
def tiles(tmp_path: Path) -> Path:
    """A step whose layers follow each other; each head of each row reads its blocks one after the other."""
    path = create_trace(tmp_path / "tiles.duckdb")
    keys = f"1 AS process_id, 1 AS engine_id, {STEP} AS step"
    with duckdb.connect(str(path)) as connection:
        start = connection.execute(f"SELECT scheduled_ns FROM step WHERE step = {STEP}").fetchall()[0][0]
        for statement in (
            f"""INSERT INTO tile_step BY NAME SELECT {keys}, {start} AS opened_ns, {LAYERS * HEADS * ROWS} AS programs,
                {LAYERS * HEADS * ROWS * BLOCKS} AS tiles, 0 AS writes, 0 AS checked_programs, 0 AS wrong_programs""",
            f"INSERT INTO batch_row BY NAME SELECT {keys}, r AS row, 1 + r AS request FROM range({ROWS}) t(r)",
            f"""INSERT INTO gpu_program BY NAME SELECT {keys}, (l * {HEADS} + h) * {ROWS} + r AS program, l AS layer,
                h AS head, r AS row, 0 AS query_block, 0 AS first_tile, {BLOCKS} AS tiles, 16 AS tile_tokens,
                {start} + l * {LAYER_NS} + r * 50 AS start_ns, start_ns + {BLOCKS * TILE_NS} AS end_ns
                FROM range({LAYERS}) a(l), range({HEADS}) b(h), range({ROWS}) c(r)""",
            f"""INSERT INTO gpu_tile BY NAME SELECT {keys}, program, t AS tile, start_ns + t * {TILE_NS} AS start_ns,
                start_ns + t * {TILE_NS} + 100 AS k_ns, start_ns + (t + 1) * {TILE_NS} AS v_ns
                FROM gpu_program, range({BLOCKS}) x(t)""",
            f"""INSERT INTO gpu_block_list BY NAME SELECT {keys}, 0 AS layer, r AS row, 16 * t AS first_token,
                100 + r * {BLOCKS} + t AS kernel_block, 16 AS kernel_block_tokens
                FROM range({ROWS}) a(r), range({BLOCKS}) b(t)""",
        ):
            connection.execute(statement)
    return path


def covered(rows: dict[str, list[object]], kind: str, block: int, time: int) -> bool:
    last = rows.get("last_block", rows["block"])
    found = zip(rows["kind"], rows["block"], last, rows["start_ns"], rows["end_ns"], strict=True)
    return any(k == kind and low <= block <= high and begin <= time <= end for k, low, high, begin, end in found)  # type: ignore[operator]


def test_the_coarse_level_covers_what_was_accessed_and_counts_every_access(
    tiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closeups, "OVERVIEW_FROM", 10)
    monkeypatch.setattr(closeups, "GROUPS", 20)
    monkeypatch.setattr(closeups, "BINS", 100)
    monkeypatch.setattr(closeups, "CHUNK_ROWS", 100)
    found = Exported(tiles)
    (entry,) = found.engine["close_ups"]["steps"]
    fine, coarse = found.read(entry["accesses"]), found.read(entry["overview"])
    # A row a layer, block, request and kind, heads together; cut by time.
    assert len(fine["block"]) == LAYERS * ROWS * BLOCKS * 2
    assert set(fine["accesses"]) == {HEADS}
    assert len(entry["accesses"]) == 8
    assert found.read(entry["blocks"])["block"] == list(range(100, 100 + ROWS * BLOCKS))
    assert len(found.read(entry["windows"])["layer"]) == 2 * LAYERS
    assert sum(coarse["accesses"]) == LAYERS * ROWS * BLOCKS * 2 * HEADS
    assert len(coarse["block"]) < len(fine["block"])
    for at in range(0, len(fine["block"]), 37):
        for time in (fine["start_ns"][at], fine["end_ns"][at]):
            assert covered(coarse, fine["kind"][at], fine["block"][at], time)
    # Between two layers nothing is read: neither level says so.
    gap = min(fine["start_ns"]) + LAYER_NS - 400
    assert not any(covered(rows, "k_read", block, gap) for rows in (fine, coarse) for block in range(100, 196))


def test_a_limit_of_rows_leaves_steps_spread_over_the_recording() -> None:
    assert closeups.spread([]) == []
    assert closeups.spread([7]) == [7]
    order = closeups.spread(list(range(24)))
    assert sorted(order) == list(range(24))
    for taken in range(2, 25):
        gaps = np.diff([*sorted(order[:taken]), 24])
        assert gaps.max() <= 2 * 24 / taken + 1


def test_a_reader_comes_from_the_whole_step_to_a_single_access(
    chromium: Chromium, tiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closeups, "OVERVIEW_FROM", 10)
    chromium.open(make_page(tiles), f"step={STEP}")
    wait_for_text(chromium, "KV accesses")
    chromium.key("c", "c")
    said = wait_for_text(chromium, "Observed on the GPU", "#close-up")
    assert f"{LAYERS * ROWS * BLOCKS * 2:,} accesses of {ROWS * BLOCKS} blocks" in said
    assert chromium.texts("#close-up .legend li") == ["K read", "V read"]
    # The third layer alone, by keys: its windows are told.
    for _ in range(5):
        chromium.key(".", ".")
    assert "layer 2, K read · 1.85 µs from +8.00 µs" in wait_for_text(chromium, "layer 2", "#close-up .about")
    chromium.key("z", "z")
    # WHEN the second block of the first row is pointed at and clicked while its K is read
    box = chromium.evaluate(
        "(() => { const box = document.querySelector('#close-up canvas').getBoundingClientRect();"
        "return [box.left, box.top, box.width]; })()"
    )
    x = box[0] + 62 + (box[2] - 72) * (1850 / 8 + 250) / (1850 * 1.25)
    y = box[1] + 190 + 24 + 340 * 1.5 / (ROWS * BLOCKS)
    chromium.click(x, y)
    # THEN it is told, with the way to its block and its request
    about = wait_for_text(chromium, "block 101", "#close-up .about")
    assert "layer 2, K read · 100 ns from +8.20 µs" in about
    assert f"{HEADS} accesses" in about
    chromium.press("block 101", "#close-up .about")
    wait_for_text(chromium, "KV block 101")
    assert not chromium.evaluate("document.getElementById('close-up').open")
    assert chromium.console == []
