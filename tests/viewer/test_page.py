"""Reading and using the page, in a real browser."""

from __future__ import annotations

import json
import math
from pathlib import Path

import duckdb
import pytest

from kvtrace.ingest.run import ingest
from kvtrace.ingest.sources import Sources
from kvtrace.queries import Trace
from kvtrace.queries.identify import identify
from kvtrace.viewer import requests, steps
from kvtrace.viewer.page import make_folder

from .chromium import Chromium, Tab
from .exported import Exported
from .pages import MS, column, insert_moves, make_page, middle, row, rows, text, wait_for_text, window
from .simulate import EPOCH_NS, create_trace, insert

SHIFT = 8
NAME = "session || ' turn ' || turn"


def name_of(trace: Path, request: int) -> str:
    """The label of a request on the page."""
    found: str = column(trace, f"SELECT {NAME} FROM request WHERE request = {request}")[0]
    return found


@pytest.fixture(scope="module")
def page(trace: Path) -> Path:
    return make_page(trace)


@pytest.fixture(scope="module")
def two_engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_page(create_trace(tmp_path_factory.mktemp("two") / "two.duckdb", engines=2))


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
    median, late = column(
        trace,
        "SELECT unnest(quantile_disc((first_token_ns - arrival_ns) / 1e6, [0.5, 0.95])) FROM request",
    )
    assert f"TTFT\n{median:.1f} ms\np95 {late:.1f} ms" in cards


STRETCHES = {
    "in view": ("from=4.0&to=4.5", 4.0, 4.5),
    "selected": ("numbers=selection&step=300", None, None),
    "the whole trace": ("numbers=trace&from=4.0&to=4.5", 0.0, 1e6),
}


@pytest.mark.parametrize("what", STRETCHES)
def test_cards_count_a_stretch_of_time(chromium: Chromium, page: Path, trace: Path, what: str) -> None:
    fragment, first, last = STRETCHES[what]
    if first is None:
        first, last = (
            (ns - EPOCH_NS) / 1e9 for ns in row(trace, "SELECT end_ns - interval_ns, end_ns FROM step WHERE step = 300")
        )
    inside = f"BETWEEN {EPOCH_NS + round(first * 1e9)} AND {EPOCH_NS + round(last * 1e9) - 1}"
    steps = column(trace, f"SELECT count(*) FROM step WHERE end_ns - interval_ns {inside}")[0]
    outputs = column(trace, f"SELECT sum(output_tokens)::INT FROM step WHERE end_ns - interval_ns {inside}")[0]
    ended = column(trace, f"SELECT count(*) FROM request WHERE finished_ns {inside}")[0]
    hits = row(
        trace,
        "SELECT printf('%.1f%%', 100 * sum(local_cached_tokens) / sum(prompt_tokens)), sum(prompt_tokens)::INT"
        f" FROM request WHERE scheduled_ns {inside}",
    )
    chromium.open(page, fragment)
    cards = wait_for_text(chromium, f"Steps\n{steps:,}\n", "#cards")
    assert f"Output tokens\n{outputs:,}\n" in cards
    assert f"\n{ended:,} finished" in cards
    if hits[0] is not None:
        assert f"From prefix cache\n{hits[0]}\nof {hits[1]:,} prompt tokens" in cards


def test_a_steps_bar_has_the_colour_of_its_phase(chromium: Chromium, page: Path, trace: Path) -> None:
    # GIVEN a step that did little but compute lost tokens again, alone in the window
    only_resumed = (
        "FROM step WHERE resumed_tokens > 0.7 * scheduled_tokens AND resumed_tokens > 100 ORDER BY step LIMIT 1"
    )
    start = (column(trace, f"SELECT end_ns - interval_ns {only_resumed}")[0] - EPOCH_NS) / 1e9
    end = (column(trace, f"SELECT end_ns {only_resumed}")[0] - EPOCH_NS) / 1e9
    chromium.open(page, f"from={start}&to={end}")
    # WHEN it is drawn, THEN the upper part of the lane has the colour the legend gives to that phase
    chromium.frame()
    drawn = chromium.evaluate("""(() => {
        const canvas = document.querySelector('[data-lane=steps] canvas');
        const pixel = canvas.getContext('2d').getImageData(canvas.width / 2 + 90, canvas.height * 0.35, 1, 1);
        return [...pixel.data].slice(0, 3);
    })()""")
    legend = chromium.evaluate("""(() => {
        const item = [...document.querySelectorAll('[data-lane=steps] .legend li')]
            .find((li) => li.innerText.trim() === 'resumed');
        return getComputedStyle(item.firstChild).backgroundColor.match(/\\d+/g).map(Number);
    })()""")
    assert drawn == legend


def test_the_map_shows_the_recorded_state_of_a_block(chromium: Chromium, page: Path, trace: Path) -> None:
    # GIVEN the middle of the longest time in which a block was held by one request
    block, start, end, request = row(
        trace,
        """SELECT block_id, time_ns, ends, request FROM (
            SELECT *, lead(time_ns) OVER (PARTITION BY block_id ORDER BY rowid) AS ends,
                lead(op) OVER (PARTITION BY block_id ORDER BY rowid) AS next_op FROM block_event)
        WHERE op = 'cache' AND ref_count = 1 AND next_op = 'free' ORDER BY ends - time_ns DESC LIMIT 1""",
    )
    at = ((start + end) / 2 - EPOCH_NS) / 1e9
    chromium.open(page, f"from={at - 0.01}&to={at + 0.01}&block={block}&at={at}")
    name = name_of(trace, request)
    facts = wait_for_text(chromium, f"KV block {block}")
    assert "state\nin use" in facts
    assert f"held by\n{name}" in facts
    # WHEN the map is pointed at there, THEN it says and shows the same
    x, _ = middle(chromium, "map")
    top, height = chromium.evaluate(
        "(() => { const box = document.querySelector('[data-lane=map] canvas').getBoundingClientRect();"
        "return [box.top, box.height]; })()"
    )
    y = math.ceil(top + height * block / 89)  # a row has less than two pixels, and a mouse is at whole ones
    chromium.mouse("mouseMoved", x, y)
    assert text(chromium, "#tooltip").split("\n")[0] == f"Block {block}"
    assert f"held by {name}" in text(chromium, "#tooltip")


def test_a_block_tells_who_evicted_what_it_held(chromium: Chromium, tmp_path: Path) -> None:
    # GIVEN a cached block whose content was evicted, a moment before another request got it
    trace = create_trace(tmp_path / "evicted.duckdb")
    with duckdb.connect(str(trace)) as connection:
        connection.execute("UPDATE block_event SET time_ns = time_ns + 20_000 WHERE op = 'evict'")
        connection.execute("UPDATE block_event SET time_ns = time_ns + 24_000 WHERE op = 'allocate'")
    block, freed, evicted, request, step = row(
        trace,
        """SELECT block_id, before_ns, time_ns, taker, step FROM (
            SELECT *, lag(time_ns) OVER life AS before_ns, lag(op) OVER life AS before_op,
                lead(request) OVER life AS taker, lead(op) OVER life AS next_op
            FROM block_event WINDOW life AS (PARTITION BY block_id ORDER BY rowid))
        WHERE op = 'evict' AND before_op = 'free' AND next_op = 'allocate' AND step > 500
        ORDER BY time_ns - before_ns DESC LIMIT 1""",
    )
    at = ((freed + evicted) / 2 - EPOCH_NS) / 1e9
    # WHEN it is selected while it is free and cached, THEN it says in which step it was evicted, and for whom
    chromium.open(make_page(trace), f"block={block}&at={at}")
    facts = wait_for_text(chromium, "Who evicted its content")
    assert "state\nfree, still cached" in facts
    assert f"evicted for\n{name_of(trace, request)}" in facts
    assert f"step {step:,}" in facts.split("Who evicted its content")[1].split("Its life")[0]


def test_wheel_keys_and_drags_move_the_window(chromium: Chromium, page: Path) -> None:
    chromium.open(page)
    whole = window(chromium)
    x, y = middle(chromium, "pool")
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
    chromium.key("Backspace")
    assert window(chromium) == whole
    assert chromium.console == []


def test_the_page_opens_on_the_engines_work_and_all_shows_the_profile_before_it(
    chromium: Chromium, tmp_path: Path
) -> None:
    path = create_trace(tmp_path / "early.duckdb")
    first, last = row(path, "SELECT min(start_ns), max(end_ns) FROM step")
    early = first - 60_000 * MS
    with duckdb.connect(str(path)) as connection:
        kernel = {"activity_id": 1, "source_id": 1, "kind": "kernel", "pid": 1, "device": 0, "stream": 7}
        insert(connection, "gpu_activity", [kernel | {"start_ns": early, "end_ns": early + MS}])
    chromium.open(make_page(path))
    opened = window(chromium)
    assert opened[1] - opened[0] < 1.2 * (last - first)
    chromium.key("0")
    chromium.wait(f"kvtrace.view.to - kvtrace.view.from > {last - early}")


def test_a_click_selects_the_step_under_it(chromium: Chromium, page: Path, trace: Path) -> None:
    start = (column(trace, "SELECT start_ns FROM step WHERE step = 500")[0] - EPOCH_NS) / 1e9
    chromium.open(page, f"from={start - 0.0005}&to={start + 0.0015}")
    chromium.frame()
    x, y = middle(chromium, "steps")
    chromium.mouse("mouseMoved", x, y)
    assert text(chromium, "#tooltip").startswith("Step 500")
    chromium.click(x, y)
    facts = wait_for_text(chromium, "Step 500")
    used = column(trace, "SELECT used_blocks FROM step WHERE step = 500")[0]
    assert f"\n{used} (" in facts
    chromium.key(".", ".")
    wait_for_text(chromium, "Step 501")
    chromium.key("Escape")
    wait_for_text(chromium, "This recording")


def test_a_step_tells_its_composition_its_limit_and_its_requests(chromium: Chromium, page: Path, trace: Path) -> None:
    step, need, free, head, tokens, decodes = row(
        trace,
        """SELECT step, limit_need_blocks, limit_free_blocks, limit_request, scheduled_tokens, decode_requests
        FROM step WHERE limit_need_blocks IS NOT NULL AND decode_requests > 2 LIMIT 1""",
    )
    chromium.open(page, f"step={step}")
    facts = wait_for_text(chromium, f"Step {step}")
    assert f"KV insufficient: need {need}, free {free} blocks" in facts
    assert f"[decode:{decodes}b({decodes}t)" in facts
    assert f"forward {tokens}t]" in facts
    names = column(
        trace,
        f"SELECT {NAME} FROM step_request JOIN request USING (request) WHERE step = {step}"
        " ORDER BY scheduled_tokens DESC, request",
    )
    assert chromium.texts("#inspector ul.shares button") == names
    # Its requests are marked in the list.
    related = chromium.evaluate("[...kvtrace.view.related].sort((one, other) => one - other)")
    assert related == column(trace, f"SELECT request FROM step_request WHERE step = {step} ORDER BY request")
    waits = name_of(trace, head)
    chromium.press(waits)
    wait_for_text(chromium, "Why did it wait")
    assert chromium.evaluate("document.querySelector('#inspector h2').innerText") == waits
    assert "KV insufficient" in wait_for_text(chromium, "Why did it wait")


def test_a_request_is_found_by_its_job_and_selected(chromium: Chromium, page: Path, trace: Path) -> None:
    chromium.open(page)
    chromium.key("/", "/")
    chromium.call("Input.insertText", text="SESSION-03")
    chromium.wait("document.querySelectorAll('#found li').length === 5")
    assert chromium.texts("#found li")[0].split() == ["Job", "session-03", "4", "requests"]
    chromium.key("ArrowDown")
    chromium.key("Enter")
    facts = wait_for_text(chromium, "chat-03/turn-1")
    prompt = column(trace, "SELECT prompt_tokens FROM request WHERE external_id = 'chat-03/turn-1'")[0]
    assert f"\n{prompt} tokens\n" in facts
    assert "\ntenant-0\n" in facts
    assert "\nadapter\n" in facts
    # A number finds the step and the block of that number.
    chromium.key("/", "/")
    chromium.evaluate("document.getElementById('search').value = ''")
    chromium.call("Input.insertText", text="block 17")
    chromium.wait("document.querySelector('#found li')?.innerText.startsWith('KV block 17')")
    chromium.key("Enter")
    wait_for_text(chromium, "KV block 17")


def test_at_1000_pixels_legends_are_whole_and_lanes_scroll_under_the_axis(tab: Tab, page: Path) -> None:
    chromium = tab(1000, 480)
    chromium.open(page)
    for lane in ("requests", "limits", "prefixes"):
        over = f"(box => box.scrollWidth - box.clientWidth)(document.querySelector('[data-lane={lane}] .legend'))"
        assert chromium.evaluate(over) <= 0, lane

    covered = """(() => {
        const lanes = document.getElementById("lanes"), choice = document.querySelector("[data-lane=map] select");
        const axis = lanes.querySelector(".axis").getBoundingClientRect(), box = choice.getBoundingClientRect();
        lanes.scrollTop += (box.top + box.bottom) / 2 - (axis.top + axis.bottom) / 2;
        const now = choice.getBoundingClientRect(), middle = (axis.top + axis.bottom) / 2;
        return now.top < middle && middle < now.bottom
            && document.elementFromPoint(now.left + 5, middle).closest(".axis") !== null;
    })()"""
    assert chromium.evaluate(covered)


def test_the_address_takes_any_id_that_explain_takes(chromium: Chromium, page: Path, trace: Path) -> None:
    number, external, internal, session, turn = row(
        trace,
        "SELECT request, external_id, internal_id, session, turn FROM request WHERE external_id = 'chat-03/turn-1'",
    )
    chromium.open(page)
    for given in (
        external,
        internal,
        str(number),
        f"#{number}",
        f"{session}/{turn}",
        external[:-1] + "1…",
        internal[:-1],
    ):
        with Trace(trace) as opened:
            assert identify(opened, given).number == number, given
        chromium.evaluate("location.hash = 'step=1'")
        chromium.wait("kvtrace.view.selection?.kind === 'step'")
        chromium.evaluate(f"location.hash = 'request=' + encodeURIComponent({json.dumps(given)})")
        chromium.wait(f"kvtrace.view.selection?.kind === 'request' && kvtrace.view.selection.id === {number}")
    # Of what means several, or nothing, the search has the candidates.
    for given, found in ((session, 5), ("nobody", 1)):
        chromium.evaluate(f"location.hash = 'request=' + encodeURIComponent({json.dumps(given)})")
        chromium.wait(
            f"document.querySelectorAll('#found li').length === {found} && !document.querySelector('#found').hidden"
        )
        assert chromium.evaluate("kvtrace.view.selection === null")
    assert chromium.console == []


def test_an_id_in_the_address_is_looked_for_in_all_engines(chromium: Chromium, tmp_path: Path) -> None:
    trace = create_trace(tmp_path / "two.duckdb", engines=2)
    with duckdb.connect(str(trace)) as connection:
        connection.execute(
            "UPDATE request SET external_id = 'only-here' WHERE request = "
            "(SELECT max(request) FROM request WHERE engine_id = 2)"
        )
    chromium.open(make_page(trace), "engine=all&request=only-h")
    chromium.wait("kvtrace.view.selection?.kind === 'request'")
    assert chromium.evaluate("kvtrace.view.selection.engine === kvtrace.view.engines[1]")


def test_a_user_follows_a_preempted_request_to_the_step_that_evicted_it(chromium: Chromium, tmp_path: Path) -> None:
    # GIVEN a request that another one's allocation preempted, and whose lookup missed
    path = create_trace(tmp_path / "trace.duckdb")
    found = Exported(path)
    preemptions = found.read(found.engine["requests"]["preemptions"])
    at = next(i for i, whom in enumerate(preemptions["preempted_for"]) if whom is not None)
    request, step, whom = (preemptions[name][at] for name in ("request", "step", "preempted_for"))
    names = dict(rows(path, f"SELECT request, {NAME} FROM request"))
    lost = column(path, "SELECT end_ns FROM step WHERE step = 7")[0] - 1000
    told = {"verdict": "evicted", "why": "Evicted for <b>chat-07</b>.", "avoidable_tokens": 64, "avoidable_ns": 1500000}
    miss = {"engine_id": 1, "request": request, "time_ns": 5, "resumed": False, "lost_ns": lost, "other_request": whom}
    later = miss | {"time_ns": 4, "resumed": True, "verdict": "reset", "why": "Not this one."}
    with duckdb.connect(str(path)) as connection:
        insert(connection, "prefix_miss", [miss | told, later])
    chromium.open(make_page(path))
    # WHEN a user zooms to it, finds it with the key for preempted requests and presses it
    start = preemptions["start_ns"][at]
    chromium.evaluate(f"kvtrace.show({start} - 3e6, {start} + 9e6)")
    chromium.key("p", "p")
    facts = wait_for_text(chromium, names[request])
    # THEN it reads why its lookup missed, and who evicted it
    assert "Evicted for <b>chat-07</b>.\n\nverdict\nevicted" in facts
    assert f"evicted by\n{names[whom]}" in facts
    assert "step 7\navoidable\n64 tokens\ntheir price\n1.50 ms" in facts
    assert "Not this one" not in facts
    assert f"for {names[whom]}, which needed blocks" in facts
    # AND comes to the step that did it, and from there to the request it was done for
    chromium.press(f"step {step:,}")
    wait_for_text(chromium, f"Step {step:,}")
    assert names[request] in text(chromium, "#inspector")
    chromium.wait("decodeURIComponent(location.hash).includes('step=')")
    chromium.press(names[whom])
    wait_for_text(chromium, "Why did it wait")
    assert chromium.evaluate(f"kvtrace.view.selection.id === {whom}")
    assert chromium.console == []


def test_a_selected_request_stands_out_in_the_map(chromium: Chromium, page: Path) -> None:
    chromium.open(page)
    chromium.frame()
    before = accent_pixels(chromium)
    chromium.evaluate("location.hash = 'request=chat-03/turn-1'")
    wait_for_text(chromium, "chat-03/turn-1")
    chromium.frame()
    assert before == 0
    assert accent_pixels(chromium) > 500


def accent_pixels(browser: Chromium) -> int:
    found: int = browser.evaluate("""(() => {
        const canvas = document.querySelector('[data-lane=map] canvas');
        const hex = getComputedStyle(document.documentElement).getPropertyValue('--accent').trim();
        const wanted = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
        const { data } = canvas.getContext('2d').getImageData(170, 0, canvas.width - 190, canvas.height);
        let found = 0;
        for (let i = 0; i < data.length; i += 4) {
            if (wanted.every((value, at) => Math.abs(data[i + at] - value) < 40)) found++;
        }
        return found;
    })()""")
    return found


def test_the_address_holds_the_view(chromium: Chromium, page: Path) -> None:
    chromium.open(page)
    chromium.evaluate("kvtrace.show(4e9, 5e9); document.querySelector('[data-name=pool]').click()")
    chromium.evaluate(
        "(() => { const choice = document.querySelector('[data-lane=map] select'); choice.value = 'owner';"
        "choice.dispatchEvent(new Event('change')); })()"
    )
    chromium.wait("location.hash.includes('colour=owner')")
    address = chromium.evaluate("location.hash.slice(1)")
    chromium.open(page, address)
    assert window(chromium) == (pytest.approx(4e9), pytest.approx(5e9))
    assert chromium.evaluate("document.querySelector('[data-lane=pool]').hidden")
    assert chromium.evaluate("document.querySelector('[data-lane=map] select').value") == "owner"


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
    wait_for_text(chromium, "Engine 2")


def test_all_engines_of_all_runs_are_compared_or_one_of_each(chromium: Chromium, trace: Path, tmp_path: Path) -> None:
    two = create_trace(tmp_path / "two.duckdb", engines=2)
    chromium.open(make_page(trace, two, name="engines"))
    titles = "kvtrace.view.engines.map((engine) => engine.title)"
    assert chromium.evaluate(titles) == ["trace", "two · engine 1, DP rank 0", "two · engine 2, DP rank 1"]
    assert len(chromium.texts("[data-lane=map]")) == 3
    # One engine of the second run: only that run has a list; the table goes on showing all.
    assert chromium.evaluate("document.querySelectorAll('#engine-choice select').length") == 1
    chromium.evaluate(
        "(() => { const list = document.querySelector('#engine-choice select'); list.value = '1';"
        "list.dispatchEvent(new Event('change')); })()"
    )
    assert chromium.evaluate(titles) == ["trace", "two · engine 2, DP rank 1"]
    chromium.wait("location.hash.includes('engine=')")
    chromium.key("t", "t")
    steps = column(two, "SELECT count(*) FROM step GROUP BY engine_id ORDER BY engine_id")
    lines = chromium.texts("#table tbody tr")
    assert len(lines) == 3
    for line, count in zip(lines[1:], steps, strict=True):
        assert f"{count:,}" in line
    chromium.key("Escape")
    # A selected request of that engine comes back from the address.
    request = row(two, "SELECT request, external_id FROM request WHERE engine_id = 2 ORDER BY request LIMIT 1")
    chromium.evaluate(f"location.hash += '&run=1&request=' + encodeURIComponent({request[1]!r})")
    chromium.wait(f"kvtrace.view.selection?.id === {request[0]}")
    assert chromium.evaluate("kvtrace.view.selection.engine.title") == "two · engine 2, DP rank 1"
    assert chromium.console == []


def test_two_runs_are_compared_from_their_first_events_on(chromium: Chromium, trace: Path, tmp_path: Path) -> None:
    other = create_trace(tmp_path / "smaller.duckdb", blocks=60)
    page = make_page(trace, other, name="both")
    chromium.open(page)
    assert chromium.evaluate("kvtrace.lanes().filter((lane) => lane.name === 'map').length") == 2
    assert chromium.evaluate("kvtrace.view.engines.map((engine) => engine.shift)") == [
        column(path, "SELECT min(time_ns) FROM request_event")[0] // 10**9 * 10**9
        - EPOCH_NS
        + chromium.evaluate(f"kvtrace.contents.runs[{number}].first_ns % 1e9")
        for number, path in enumerate((trace, other))
    ]
    for path in (trace, other):
        assert f"{column(path, 'SELECT sum(preemptions)::INT FROM request')[0]}" in text(chromium, "#cards").split("\n")
    chromium.key("t", "t")
    assert [line.split("\t")[0] for line in chromium.texts("#table tbody th")] == ["trace", "smaller"]
    assert chromium.console == []


def test_a_folder_loads_its_chunks_as_they_are_needed(
    chromium: Chromium, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a split page in which the trace's steps and requests have two levels
    for module, name, value in (
        (steps, "CHUNK_STEPS", 200),
        (steps, "OVERVIEW_BARS", 100),
        (steps, "OVERVIEW_FROM", 1000),
        (requests, "CHUNK_REQUESTS", 10),
    ):
        monkeypatch.setattr(module, name, value)
    make_folder([trace], tmp_path / "page")
    index = tmp_path / "page" / "index.html"
    chromium.open(index)
    assert chromium.evaluate("document.documentElement.dataset.state") == "ready"
    # WHEN a step is selected, THEN only the chunks around it have been asked for, and nothing from anywhere else
    chromium.requests.clear()
    chromium.evaluate("location.hash = 'step=700'")
    assert "Step 700" in wait_for_text(chromium, "Requests in it")
    asked = {Path(url).stem for url in chromium.requests}
    assert {"r0e0-shares-3"} <= asked
    assert "r0e0-shares-0" not in asked
    assert all(url.startswith(index.parent.as_uri()) for url in chromium.requests)
    assert chromium.console == []
    blocked = chromium.evaluate("fetch('https://example.invalid/').then(() => 'sent', (error) => error.name)")
    assert blocked == "TypeError"


def test_a_folder_that_lost_a_chunk_says_which(chromium: Chromium, trace: Path, tmp_path: Path) -> None:
    make_folder([trace], tmp_path / "page")
    (tmp_path / "page" / "data" / "r0e0-map-0.js").unlink()
    chromium.open(tmp_path / "page" / "index.html")
    chromium.wait("document.documentElement.dataset.state === 'ready'")
    assert "data/r0e0-map-0.js is missing beside this page" in text(chromium, "#failure")


@pytest.fixture(scope="module")
def moves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = create_trace(tmp_path_factory.mktemp("moves") / "moves.duckdb")
    insert_moves(path)
    return make_page(path)


@pytest.mark.parametrize(
    ("lane", "at_ms", "expected"),
    [
        ("transfers", 1, ("load: cpu → gpu", "blocks\n3", "bytes\n977 KiB", "bandwidth\n0.500 GB/s", "step 300")),
        ("pins", 20, ("Block 40: ttl", "pinned together\n1 block", "held for\n20.0 ms", "ended\nexpired")),
        ("kernels", 42, ("flash<script>", "category\nattention", "duration\n4.00 ms", "step 300", "stream\n7")),
    ],
)
def test_a_click_selects_a_transfer_a_pin_and_a_kernel(
    chromium: Chromium, moves: Path, lane: str, at_ms: int, expected: tuple[str, ...]
) -> None:
    at = 4 + at_ms / 1e3
    chromium.open(moves, f"from={at - 0.002}&to={at + 0.002}")
    chromium.frame()
    chromium.evaluate(f"document.querySelector('[data-lane={lane}]').scrollIntoView()")
    chromium.frame()
    x, y = middle(chromium, lane)
    chromium.click(x, y - (10 if lane == "transfers" else 0))
    facts = wait_for_text(chromium, expected[0])
    assert all(each in facts for each in expected), facts
    # Its place is in the address, which leads back to it.
    chromium.wait(f"location.hash.includes('{lane[:-1]}=')")
    chromium.open(moves, chromium.evaluate("location.hash.slice(1)"))
    wait_for_text(chromium, expected[0])
    assert chromium.console == []


def test_an_offload_tiers_blocks_are_told(chromium: Chromium, moves: Path) -> None:
    chromium.open(moves, "from=4.01&to=4.09")
    chromium.evaluate("document.querySelector('[data-lane=tiers]').scrollIntoView()")
    chromium.frame()
    x, y = middle(chromium, "tiers")
    for place, blocks in ((x - 200, 1), (x + 200, 2)):
        chromium.mouse("mouseMoved", place, y)
        assert f"cpu: {blocks} blocks held" in text(chromium, "#tooltip")


def test_a_steps_kv_accesses_are_shown_close_up(chromium: Chromium, moves: Path) -> None:
    chromium.open(moves, "step=300")
    wait_for_text(chromium, "KV accesses")
    chromium.key("c", "c")
    chromium.wait("document.getElementById('close-up').open")
    assert "1 of 1 steps with accesses" in text(chromium, "#close-up")
    # WHEN the second layer's row and the second block's are pointed at, THEN they are told
    left, top, right = chromium.evaluate(
        "(() => { const box = document.querySelector('#close-up canvas').getBoundingClientRect();"
        "return [box.left, box.top, box.right]; })()"
    )
    chromium.mouse("mouseMoved", right - 40, top + 150)
    wait_for_text(chromium, "layer 1, read by attention", "#close-up .about")
    assert "derived from the layers around it" in text(chromium, "#close-up .about")
    assert "observed; paler ones derived" in text(chromium, "#close-up")
    chromium.mouse("mouseMoved", left + 100, top + 214 + 170)
    wait_for_text(chromium, "block 21", "#close-up .about")
    assert "layer 0, read by attention · 1.00 ms from +0 ns · block 21" in text(chromium, "#close-up .about")
    assert chromium.console == []


HOSTILE = (
    "<script>window.hacked = 1</script>",
    "\"'><img src=x onerror='window.hacked = 1'>",
    "</script><script>window.hacked = 1</script>\u2028",
    "\u202egnihtemos",
    "long" * 2560,
    "@DATA@ <!--kvtrace:data--> ${window.hacked = 1}",
)


def test_hostile_names_stay_text(chromium: Chromium, tmp_path: Path) -> None:
    # GIVEN a trace whose ids, model, command, verdicts and notes try to become markup
    trace = create_trace(tmp_path / "hostile.duckdb")
    with duckdb.connect(str(trace)) as connection:
        for turn, name in enumerate(HOSTILE):
            connection.execute(
                "UPDATE request SET external_id = $1, internal_id = $1, session = $1, tenant = $1, lora = $1 "
                "WHERE request = $2",
                [name, 1 + turn],
            )
        miss = {"engine_id": 1, "request": 1, "time_ns": 5, "resumed": False, "verdict": HOSTILE[0]}
        insert(connection, "prefix_miss", [miss | {"why": HOSTILE[1], "other_request": 2}])
        connection.execute("UPDATE engine SET model = $1", [HOSTILE[0]])
        connection.execute("UPDATE process SET stopped = $1, vllm_version = $2", [HOSTILE[1], HOSTILE[3]])
        connection.execute("UPDATE run SET value = $1 WHERE key = 'command'", [json.dumps(list(HOSTILE))])
    chromium.open(make_page(trace))
    for turn, name in enumerate(HOSTILE):
        # WHEN each such request is selected and hovered
        chromium.evaluate(f"location.hash = 'request=' + encodeURIComponent({json.dumps(name)})")
        chromium.wait(f"kvtrace.view.selection?.kind === 'request' && kvtrace.view.selection.id === {1 + turn}")
        chromium.wait("document.querySelector('#inspector h2 bdi')?.textContent === " + json.dumps(f"{name} turn 1"))
        x, y = middle(chromium, "requests")
        chromium.mouse("mouseMoved", x, y)
    # AND searched for
    chromium.key("/", "/")
    chromium.call("Input.insertText", text="<script>")
    chromium.wait("document.querySelectorAll('#found li').length > 1")
    # THEN it is shown as it is and nothing of it ran
    assert chromium.evaluate("window.hacked === undefined && document.images.length === 0")
    assert chromium.evaluate("[...document.scripts].filter((each) => !each.type).length") == 1
    assert chromium.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert chromium.console == []


def test_an_empty_trace_says_what_is_missing(chromium: Chromium, tmp_path: Path) -> None:
    chromium.open(make_page(create_trace(tmp_path / "empty.duckdb", engines=0)))
    assert chromium.evaluate("document.documentElement.dataset.state") == "failed"
    shown = text(chromium, "body")
    assert "no engine, no scheduler step, no request" in shown
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


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0,12,1\n"


def test_a_trace_with_nothing_to_draw_says_what_it_is_made_of(chromium: Chromium, tmp_path: Path) -> None:
    """GIVEN a profile of the host alone THEN the page does not blame a recording that there was not."""
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 1}
    (tmp_path / "a.json").write_text(json.dumps({"traceEvents": [event]}))
    sources = Sources(torch=(tmp_path / "a.json",))
    chromium.open(make_page(ingest(None, tmp_path / "t.duckdb", sources=sources).target))
    assert "torch told of no scheduler step, no request and no GPU activity" in text(chromium, "#failure")
    assert "kvtrace record" not in text(chromium, "#failure")


def test_an_engine_of_another_clock_is_shown_in_its_own_time(chromium: Chromium, tmp_path: Path) -> None:
    """GIVEN a file that counts from 0 and one of 2023 WHEN one is chosen THEN its 3 s are in sight, not 54 years.

    An engine of which the file tells no times is not the one that the page opens with.
    """
    files = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path, start_ms in zip(files, (0, 1_700_000_000_000), strict=True):
        lines = ({"timestamp": start_ms + ms, "input_length": 5, "output_length": 1} for ms in (0, 3000))
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    trace = ingest(None, tmp_path / "t.duckdb", sources=Sources(requests=files)).target
    with duckdb.connect(str(trace)) as connection:
        connection.execute("INSERT INTO engine (engine_id) VALUES (0)")
    page = make_page(trace)
    origins = {
        "": "0 s = first event",
        "engine=1": "0 s = first event",
        "engine=2": "0 s = 2023-11-14 22:13:20.000 UTC",
    }
    for address, origin in origins.items():
        chromium.open(page, address)
        low, high = window(chromium)
        assert -0.2 < low / 1e9 <= 0
        assert 3 <= high / 1e9 < 3.2
        assert text(chromium, "#when") == origin
    chromium.open(page, "engine=0")
    low, high = window(chromium)
    assert high - low < 1e9


def test_requests_without_a_scheduler_are_explained(chromium: Chromium, trace: Path, tmp_path: Path) -> None:
    """GIVEN a request trace, which says when requests arrived THEN the legend has their colour, and no state's."""
    (tmp_path / "azure.csv").write_text(AZURE)
    sources = Sources(requests=(tmp_path / "azure.csv",))
    chromium.open(make_page(ingest(None, tmp_path / "t.duckdb", sources=sources).target))
    assert chromium.texts("[data-lane=requests] .legend li") == ["states unknown", "tool gap"]
    assert "finished" not in text(chromium, "#cards")
    assert "TP / PP / DP" not in text(chromium, "#inspector")
    chromium.open(make_page(trace))
    assert "states unknown" not in chromium.texts("[data-lane=requests] .legend li")
