"""What a reader sees and does, in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kvtrace.viewer.export import export
from kvtrace.viewer.page import render, write

from .chromium import Chromium
from .simulate import create_trace, insert

SHIFT = 8


def make_page(trace: Path, **limits: int) -> Path:
    page = trace.parent / f"{trace.stem}-{'-'.join(map(str, limits.values()))}.html"
    write(render(export(trace, **limits)), page)
    return page


@pytest.fixture(scope="module")
def page(trace: Path) -> Path:
    return make_page(trace)


@pytest.fixture(scope="module")
def two_engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_page(create_trace(tmp_path_factory.mktemp("two") / "two.duckdb", engines=2))


def text(browser: Chromium, selector: str) -> str:
    found: str = browser.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
    return found


def middle(browser: Chromium, lane: str) -> tuple[float, float]:
    box = browser.evaluate(
        f"(() => {{ const box = document.querySelector('[data-lane={lane}]').getBoundingClientRect();"
        "return [box.left + 200, box.right - 20, (box.top + box.bottom) / 2]; })()"
    )
    return (box[0] + box[1]) / 2, box[2]


def window(browser: Chromium) -> tuple[float, float]:
    from_ns, to_ns = browser.evaluate("[kvtrace.state.from, kvtrace.state.to]")
    return from_ns, to_ns


def column(trace: Path, query: str) -> list[Any]:
    with duckdb.connect(str(trace), read_only=True) as connection:
        return [row[0] for row in connection.sql(query).fetchall()]


def test_the_page_opens_without_complaint_and_asks_for_nothing(chromium: Chromium, page: Path) -> None:
    chromium.open(page)
    chromium.frame()
    assert chromium.console == []
    assert chromium.requests[-1] == page.resolve().as_uri()
    assert all(url.startswith(("file:", "about:", "data:")) for url in chromium.requests)
    assert chromium.evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)") == []


def test_the_page_may_not_ask_for_anything(chromium: Chromium, page: Path) -> None:
    chromium.open(page)
    blocked = chromium.evaluate("fetch('https://example.invalid/').then(() => 'sent', (error) => error.name)")
    assert blocked == "TypeError"
    assert any("Content Security Policy" in line for line in chromium.console)


def test_the_page_holds_what_the_trace_holds(chromium: Chromium, page: Path, trace: Path) -> None:
    chromium.open(page)
    engine = "kvtrace.document.engines[0]"
    steps = chromium.evaluate(f"{engine}.steps.columns")
    assert steps["step"] == column(trace, "SELECT step FROM step ORDER BY step")
    assert steps["used_blocks"] == column(trace, "SELECT used_blocks FROM step ORDER BY step")
    assert steps["admission_limit"] == column(trace, "SELECT admission_limit::VARCHAR FROM step ORDER BY step")
    assert chromium.evaluate(f"{engine}.tokens") == column(trace, "SELECT scheduled_tokens FROM step ORDER BY step")
    starts = column(trace, "SELECT end_ns - interval_ns - 1760000000000000000 FROM step ORDER BY step")
    assert steps["start_ns"] == starts
    requests = chromium.evaluate(f"{engine}.requests.columns")
    assert requests["external_id"] == column(trace, "SELECT external_id FROM request ORDER BY queued_ns, request")


def test_cards_say_the_totals(chromium: Chromium, page: Path, trace: Path) -> None:
    chromium.open(page)
    cards = text(chromium, "#cards")
    for query in (
        "SELECT sum(output_tokens)::INT FROM request",
        "SELECT sum(prompt_tokens)::INT FROM request",
        "SELECT count(*) FROM step",
        "SELECT count(*) FROM block_event WHERE op = 'evict'",
        "SELECT sum(preemptions)::INT FROM request",
    ):
        assert f"{column(trace, query)[0]:,}" in cards


def test_a_steps_bar_has_the_colour_of_its_phase(chromium: Chromium, page: Path, trace: Path) -> None:
    # GIVEN a step that did little but compute lost tokens again, alone in the window
    only_resumed = (
        "FROM step WHERE resumed_tokens > 0.7 * scheduled_tokens AND resumed_tokens > 100 ORDER BY step LIMIT 1"
    )
    start = (column(trace, f"SELECT end_ns - interval_ns {only_resumed}")[0] - 1760000000000000000) / 1e9
    end = (column(trace, f"SELECT end_ns {only_resumed}")[0] - 1760000000000000000) / 1e9
    chromium.open(page, f"from={start}&to={end}")
    # WHEN it is drawn, THEN the upper part of the lane has the colour the legend gives to that phase
    chromium.frame()
    drawn = chromium.evaluate("""(() => {
        const canvas = document.querySelector('[data-lane=steps] canvas');
        const pixel = canvas.getContext('2d').getImageData(canvas.width / 2 + 90, canvas.height / 4, 1, 1);
        return [...pixel.data].slice(0, 3);
    })()""")
    legend = chromium.evaluate("""(() => {
        const item = [...document.querySelectorAll('#legend-steps li')].find((li) => li.innerText.trim() === 'resumed');
        return getComputedStyle(item.firstChild).backgroundColor.match(/\\d+/g).map(Number);
    })()""")
    assert drawn == legend


def test_wheel_keys_and_drags_move_the_window(chromium: Chromium, page: Path) -> None:
    chromium.open(page)
    whole = window(chromium)
    x, y = middle(chromium, "kv")
    chromium.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400)
    chromium.frame()
    zoomed = window(chromium)
    assert whole[0] < zoomed[0] < zoomed[1] < whole[1]
    chromium.drag(x, y, x + 150, modifiers=SHIFT)
    panned = window(chromium)
    assert panned[0] < zoomed[0]
    assert panned[1] - panned[0] == pytest.approx(zoomed[1] - zoomed[0])
    chromium.key("0", "0")
    assert window(chromium) == whole
    chromium.drag(x - 100, y, x + 100)
    selected = window(chromium)
    assert (selected[1] - selected[0]) / (whole[1] - whole[0]) == pytest.approx(200 / 770, abs=0.03)
    chromium.key("+", "+")
    assert window(chromium)[1] - window(chromium)[0] == pytest.approx((selected[1] - selected[0]) / 2)
    before = window(chromium)
    chromium.key("ArrowRight")
    assert window(chromium)[0] > before[0]
    assert chromium.console == []


def test_a_click_pins_the_step_under_it(chromium: Chromium, page: Path, trace: Path) -> None:
    start = column(trace, "SELECT start_ns - 1760000000000000000 FROM step WHERE step = 500")[0] / 1e9
    chromium.open(page, f"from={start - 0.0005}&to={start + 0.0015}")
    chromium.frame()
    x, y = middle(chromium, "steps")
    chromium.mouse("mouseMoved", x, y)
    assert text(chromium, "#tooltip").startswith("Step 500")
    chromium.click(x, y)
    facts = text(chromium, "#inspector")
    used = column(trace, "SELECT used_blocks FROM step WHERE step = 500")[0]
    assert "Step 500" in facts
    assert f"\n{used} (" in facts
    chromium.key(".", ".")
    assert "Step 501" in text(chromium, "#inspector")
    chromium.key("Escape")
    assert "This recording" in text(chromium, "#inspector")


def test_a_request_is_found_by_its_session_and_pinned(chromium: Chromium, page: Path, trace: Path) -> None:
    chromium.open(page)
    chromium.key("/", "/")
    chromium.call("Input.insertText", text="SESSION-03")
    chromium.frame()
    assert text(chromium, "#gantt-count") == "4 of 40"
    chromium.key("Enter")
    facts = text(chromium, "#inspector")
    prompt = column(trace, "SELECT prompt_tokens FROM request WHERE external_id = 'chat-03/turn-1'")[0]
    assert facts.startswith("Request\nchat-03/turn-1")
    assert f"\n{prompt}\n" in facts


def test_a_click_on_a_lane_pins_its_request(chromium: Chromium, page: Path) -> None:
    chromium.open(page)
    x, _ = middle(chromium, "gantt")
    top = chromium.evaluate("document.getElementById('gantt').getBoundingClientRect().top")
    chromium.click(x, top + 2 + 13 * 2 + 6)
    third = chromium.evaluate("kvtrace.document.engines[0].requests.columns.external_id[2]")
    assert text(chromium, "#inspector").startswith(f"Request\n{third}")


def test_engines_are_chosen_from_a_list(chromium: Chromium, two_engines: Path) -> None:
    chromium.open(two_engines)
    first = text(chromium, "#cards")
    assert chromium.evaluate("document.getElementById('engine').offsetParent !== null")
    chromium.evaluate(
        "(() => { const list = document.getElementById('engine'); list.value = '1';"
        "list.dispatchEvent(new Event('change')); })()"
    )
    second = text(chromium, "#cards")
    assert second != first
    chromium.open(two_engines, "engine=1")
    assert text(chromium, "#cards") == second
    assert "Engine 2" in text(chromium, "#inspector")


def test_a_page_that_draws_a_part_says_so(chromium: Chromium, trace: Path) -> None:
    chromium.open(make_page(trace, max_step_rows=100, max_requests=7))
    notes = chromium.evaluate("document.getElementById('notes').textContent")
    assert "1,194 steps in 100 bars of 12 steps" in notes
    assert "7 longest of 40 requests" in notes
    assert text(chromium, "#gantt-count") == "7 of 40"


HOSTILE = (
    "<script>window.hacked = 1</script>",
    "\"'><img src=x onerror='window.hacked = 1'>",
    "</script><script>window.hacked = 1</script>\u2028",
    "\u202egnihtemos",
    "long" * 2560,
    "@DATA@ @SCRIPT@ ${window.hacked = 1}",
)


def test_hostile_names_stay_text(chromium: Chromium, tmp_path: Path) -> None:
    # GIVEN a trace whose ids, model, command and notes try to become markup
    trace = create_trace(tmp_path / "hostile.duckdb")
    with duckdb.connect(str(trace)) as connection:
        for turn, name in enumerate(HOSTILE):
            connection.execute(
                "UPDATE request SET external_id = $1, internal_id = $1, session = $1 WHERE request = $2",
                [name, 1001 + turn],
            )
        connection.execute("UPDATE engine SET model = $1", [HOSTILE[0]])
        connection.execute("UPDATE process SET stopped = $1, vllm_version = $2", [HOSTILE[1], HOSTILE[3]])
        connection.execute("UPDATE run SET value = $1 WHERE key = 'command'", [json.dumps(list(HOSTILE))])
    chromium.open(make_page(trace))
    for turn, name in enumerate(HOSTILE):
        # WHEN each such request is pinned and hovered
        row = chromium.evaluate(f"kvtrace.document.engines[0].rowOfRequest.get({1001 + turn})")
        chromium.evaluate(f"location.hash = 'request=' + encodeURIComponent({json.dumps(name)})")
        chromium.wait(f"kvtrace.state.pinned?.kind === 'request' && kvtrace.state.pinned.row === {row}")
        x, _ = middle(chromium, "gantt")
        top = chromium.evaluate("document.getElementById('gantt').getBoundingClientRect().top")
        chromium.mouse("mouseMoved", x, top + 8)
        # THEN it is shown as it is and nothing of it ran
        assert chromium.evaluate("document.querySelector('#inspector h2 bdi').textContent") == name
    assert chromium.evaluate("window.hacked === undefined && document.images.length === 0")
    assert chromium.evaluate("document.scripts.length") == 2
    assert chromium.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert chromium.console == []


def test_an_empty_trace_says_what_is_missing(chromium: Chromium, tmp_path: Path) -> None:
    chromium.open(make_page(create_trace(tmp_path / "empty.duckdb", engines=0)))
    assert chromium.evaluate("document.documentElement.dataset.state") == "failed"
    shown = text(chromium, "body")
    assert "no engine, no scheduler step and no request" in shown
    assert "Processes that recorded: none" in shown
    assert chromium.console == []


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("DELETE FROM step_schedule; DELETE FROM step_update", "No scheduler steps were recorded"),
        ("DELETE FROM block_event", "No block events were recorded"),
        ("DELETE FROM request", "0 of 0"),
        ("DELETE FROM step_update; DELETE FROM step_request; DELETE FROM engine; DELETE FROM prefix_lookup", "unknown"),
    ],
)
def test_a_trace_without_a_part_still_opens(chromium: Chromium, tmp_path: Path, damage: str, expected: str) -> None:
    trace = create_trace(tmp_path / "partial.duckdb")
    with duckdb.connect(str(trace)) as connection:
        connection.execute(damage)
    chromium.open(make_page(trace))
    chromium.frame()
    assert chromium.evaluate("document.documentElement.dataset.state") == "ready"
    assert expected in text(chromium, "body")
    assert chromium.console == []


def test_a_request_tells_why_its_prefix_lookup_missed(chromium: Chromium, tmp_path: Path) -> None:
    path = create_trace(tmp_path / "trace.duckdb")
    [request] = column(path, "SELECT request FROM request WHERE external_id = 'chat-03/turn-1'")
    told = {"verdict": "evicted", "why": "Evicted for <b>chat-07</b>.", "avoidable_tokens": 64, "avoidable_ns": 1500000}
    row = {"engine_id": 1, "request": request, "time_ns": 5, "resumed": False}
    later = row | {"time_ns": 4, "resumed": True, "verdict": "reset", "why": "Not this one."}
    with duckdb.connect(str(path)) as connection:
        insert(connection, "prefix_miss", [row | told, later])
    expected = "Evicted for <b>chat-07</b>.\n\nverdict\nevicted\navoidable\n64 tokens\ntheir price\n1.50 ms"
    for external_id, has in (("chat-03/turn-1", True), ("chat-03/turn-2", False)):
        chromium.open(make_page(path))
        chromium.key("/", "/")
        chromium.call("Input.insertText", text=external_id)
        chromium.frame()
        chromium.key("Enter")
        facts = text(chromium, "#inspector")
        assert facts.startswith(f"Request\n{external_id}")
        assert (expected in facts) == has, facts
        assert "Not this one" not in facts
