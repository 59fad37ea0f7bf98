"""The tree of hot prefixes: what the export says of it, and what a reader sees."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from kvtrace.queries import Trace
from kvtrace.viewer import prefixes

from .chromium import Chromium
from .exported import Exported
from .pages import make_page, rows, text, wait_for_text
from .simulate import BLOCK_TOKENS, EPOCH_NS, SHARED_BLOCKS, content_hash, create_trace


def levels(trace: Path) -> list[tuple[int, int, int]]:
    """Time, blocks held and blocks in use of the first prefix: the system prompt, which all chats begin with."""
    found = Exported(trace)
    read = found.read(found.engine["prefix_levels"])
    columns = ("start_ns", "held_blocks", "used_blocks")
    return [row for prefix, *row in zip(read["prefix"], *(read[name] for name in columns), strict=True) if prefix == 1]


def replayed(trace: Path, contents: set[int]) -> dict[int, tuple[int, int]]:
    """Blocks that hold one of these contents after each moment, and those of them in use, from the events alone."""
    holds: dict[int, int] = {}
    references: dict[int, int] = {}
    after = {}
    events = "SELECT time_ns, block_id, op, ref_count, block_hash FROM block_event ORDER BY rowid"
    for time_ns, block, op, count, content in rows(trace, events):
        references[block] = count if count is not None else references.get(block, 0)
        if op == "cache":
            holds[block] = content
        elif op == "evict":
            holds.pop(block, None)
        held = [each for each, value in holds.items() if value in contents]
        after[(time_ns - EPOCH_NS) // 1000] = len(held), sum(references[each] > 0 for each in held)
    return after


@pytest.mark.parametrize("bins", [16, 1 << 20])
def test_levels_are_the_blocks_that_hold_a_prefix(trace: Path, monkeypatch: pytest.MonkeyPatch, bins: int) -> None:
    monkeypatch.setattr(prefixes, "BINS", bins)
    after = replayed(trace, {content_hash(number) for number in range(1, SHARED_BLOCKS + 1)})
    found = levels(trace)
    assert len(found) <= bins
    moments = [moment for moment in after if moment * 1000 >= found[0][0]]
    for time_ns, *level in found:
        last = max((moment for moment in moments if moment <= time_ns // 1000), default=None)
        assert last is None or tuple(level) == after[last]
    assert max(held for _, held, _ in found) == SHARED_BLOCKS or bins == 16


def test_prefixes_are_those_of_the_query_and_have_a_price(trace: Path) -> None:
    found = Exported(trace)
    listed = found.read(found.engine["prefixes"])
    with Trace(trace) as opened:
        wanted = opened.query("hot-prefixes", format="arrow", nodes=prefixes.MOST_PREFIXES).to_pydict()
    for name in ("parent", "depth", "tokens", "lookups", "sessions", "hit_tokens", "repeated_tokens"):
        assert list(listed[name]) == wanted[name], name
    for held, used, most, span in zip(
        *(listed[name] for name in ("held_block_ns", "used_block_ns", "most_blocks", "tokens")), strict=True
    ):
        assert 0 < used <= held
        assert most >= span // BLOCK_TOKENS > 0
    users = found.read(found.engine["prefix_users"])
    assert max(users["prefix"].count(number) for number in set(users["prefix"])) <= prefixes.MOST_USERS


def test_a_click_on_a_prefix_tells_who_uses_it_and_what_it_costs(chromium: Chromium, trace: Path) -> None:
    chromium.open(make_page(trace, name="prefixes"))
    x, y = chromium.evaluate(
        "(() => { const box = document.querySelector('[data-lane=prefixes]').getBoundingClientRect();"
        "return [box.left + 400, box.top + 23 + 7]; })()"
    )
    chromium.mouse("mouseMoved", x, y)
    assert text(chromium, "#tooltip").startswith(f"Prefix 1: {SHARED_BLOCKS * BLOCK_TOKENS} tokens, from the start")
    chromium.click(x, y)
    panel = wait_for_text(chromium, "What it costs to hold")
    assert f"at most\n{SHARED_BLOCKS} blocks" in panel
    # WHEN its first user is followed, THEN that request's panel is there
    chromium.evaluate("document.querySelector('#inspector ul.plain button').click()")
    assert "session-" in wait_for_text(chromium, "Why did it wait")
    # AND the address leads back to the prefix
    chromium.evaluate("location.hash = 'prefix=1'")
    wait_for_text(chromium, "goes on from\nthe prompt's start")


def test_without_block_events_there_is_no_lane(chromium: Chromium, tmp_path: Path) -> None:
    path = create_trace(tmp_path / "trace.duckdb")
    with duckdb.connect(str(path)) as connection:
        connection.execute("DELETE FROM block_event")
    chromium.open(make_page(path))
    assert chromium.evaluate("document.querySelector('[data-lane=prefixes]')") is None
    assert chromium.evaluate("document.querySelector('#lane-list input[data-name=prefixes]').disabled")
