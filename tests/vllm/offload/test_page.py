"""The page of `kvtrace view` on real recordings with transfers, pins and an offload tier; the queries beside it."""

from __future__ import annotations

from pathlib import Path

from kvtrace.viewer.page import make_page
from tests.agreement import compare
from tests.viewer.chromium import Chromium, Tab

from .conftest import Ledger

DRAWN = """kvtrace.lanes().map((lane) => {
    const lines = ['queue', 'tiers'].includes(lane.name);
    const places = lines ? '.chart canvas' : ':scope > canvas, .scroller canvas, .prefixes canvas';
    const canvas = lane.element.querySelector(places);
    lane.element.scrollIntoView();
    const data = canvas.getContext('2d').getImageData(170, 0, canvas.width - 180, canvas.height).data;
    return [lane.name, new Set(new Uint32Array(data.buffer)).size > 2];
})"""


def drawn(browser: Chromium, ledger: Ledger, tmp_path: Path) -> dict[str, bool]:
    page = tmp_path / "page.html"
    make_page([ledger.recorded.run / "trace.duckdb"], page, max_bytes=40_000_000)
    browser.open(page)
    browser.frame()
    assert browser.evaluate("document.documentElement.dataset.state") == "ready"
    assert browser.console == []
    return dict(browser.evaluate(DRAWN))


def test_a_recording_with_an_offload_tier_is_drawn(tab: Tab, offloading: Ledger, tmp_path: Path) -> None:
    names = ("steps", "limits", "queue", "pool", "map", "prefixes", "tiers", "transfers", "pins", "requests")
    browser = tab(1280, 2000)
    assert drawn(browser, offloading, tmp_path) == dict.fromkeys(names, True)


def test_the_page_the_report_and_the_queries_agree_on_tiers(offloading: Ledger, simple_cpu: Ledger) -> None:
    for ledger in (offloading, simple_cpu):
        assert compare(ledger.recorded.run / "trace.duckdb")["tier-hits"] == 1


def test_a_recording_with_pins_is_drawn(tab: Tab, ttl: Ledger, tmp_path: Path) -> None:
    names = ("steps", "limits", "queue", "pool", "map", "prefixes", "pins", "requests")
    browser = tab(1280, 2000)
    assert drawn(browser, ttl, tmp_path) == dict.fromkeys(names, True)
    pinned = ttl.rows("SELECT count(*) AS pins FROM pin")[0]["pins"]
    references = browser.evaluate("kvtrace.contents.runs[0].engines[0].pins")
    assert sum(reference["rows"] for reference in references) == pinned > 0
