"""The page without a mouse: a user goes through every view with keys alone, and can see where they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from .axe import AXE, MISSING, violations
from .chromium import Chromium
from .pages import insert_moves, make_page, text, wait_for_text, window
from .simulate import create_trace

SHIFT = 8
FOCUS = "document.activeElement.id || document.activeElement.innerText || document.activeElement.className"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with something of every kind."""
    path = create_trace(tmp_path_factory.mktemp("keys") / "keys.duckdb")
    insert_moves(path)
    return make_page(path)


def tab_to(browser: Chromium, condition: str, modifiers: int = 0) -> None:
    """Press Tab until the focused element fulfils a condition; each one on the way shows that it has the focus."""
    for _ in range(60):
        browser.key("Tab", modifiers=modifiers)
        focused = "const here = document.activeElement;"
        if browser.evaluate(
            f"(() => {{ {focused} return here !== document.body && !here.matches(':focus-visible'); }})()"
        ):
            raise AssertionError(f"the focus is not visible on {browser.evaluate(FOCUS)}")
        outline = browser.evaluate(f"(() => {{ {focused} return getComputedStyle(here).outlineStyle; }})()")
        assert browser.evaluate("document.activeElement === document.body") or outline != "none"
        if browser.evaluate(f"(() => {{ {focused} return Boolean({condition}); }})()"):
            return
    raise AssertionError(f"Tab never came to {condition}")


def test_tab_reaches_every_control_in_the_order_it_is_read(chromium: Chromium, page: Path) -> None:
    chromium.open(page)
    order = []
    for wanted in (
        "search",
        "back",
        "zoom-out",
        "zoom-in",
        "reset",
        "numbers",
        "lane-choice",
        "show-table",
        "show-help",
        "lanes",
    ):
        tab_to(chromium, f"here.closest('#{wanted}')")
        order.append(wanted)
    for wanted in ("[data-lane=map] select", "[data-lane=requests] .scroller", "#inspector"):
        tab_to(chromium, f"here.matches('{wanted}')")
    # Enter and space press what has the focus.
    tab_to(chromium, "here.id === 'zoom-in'", SHIFT)
    before = window(chromium)
    chromium.key("Enter")
    assert window(chromium)[1] - window(chromium)[0] == pytest.approx((before[1] - before[0]) / 2)
    tab_to(chromium, "here.matches('summary')")
    chromium.key(" ")
    tab_to(chromium, "here.dataset.name === 'pool'")
    chromium.key(" ")
    assert chromium.evaluate("document.querySelector('[data-lane=pool]').hidden")
    assert chromium.console == []


def test_a_whole_session_without_a_mouse(chromium: Chromium, page: Path) -> None:
    chromium.open(page)
    whole = window(chromium)
    # Zoom, pan, back, everything.
    for key in ("+", "+", "ArrowRight", "-"):
        chromium.key(key, key if len(key) == 1 else None)
    assert whole[0] < window(chromium)[0] < window(chromium)[1] < whole[1]
    chromium.key("0", "0")
    assert window(chromium) == whole
    # One of each kind, its neighbour, and back to the first kind.
    for kind in ("step", "request", "block", "prefix", "transfer", "pin", "kernel", "step"):
        chromium.key("0", "0")
        chromium.key("s", "s")
        chromium.wait(f"document.getElementById('inspector').dataset.shows === '{kind}'")
    first = chromium.evaluate("kvtrace.view.selection.id")
    chromium.key(".", ".")
    chromium.wait(f"kvtrace.view.selection.id === {first + 1}")
    chromium.key(",", ",")
    chromium.wait(f"kvtrace.view.selection.id === {first}")
    # The map: colours, fewer blocks.
    chromium.key("m", "m")
    assert chromium.evaluate("document.querySelector('[data-lane=map] select').value") == "owner"
    chromium.key("]", "]")
    chromium.wait("location.hash.includes('blocks=0.0000-0.5000')")
    # Search, with the arrows; the box says what is chosen.
    chromium.key("/", "/")
    chromium.call("Input.insertText", text="chat-03")
    chromium.wait("document.querySelectorAll('#found li').length > 1")
    chromium.key("ArrowDown")
    active = "document.getElementById(document.getElementById('search').getAttribute('aria-activedescendant'))"
    assert chromium.evaluate(f"{active}.getAttribute('aria-selected')") == "true"
    chromium.key("Enter")
    wait_for_text(chromium, "chat-03/turn-2")
    # Enter goes to the details, Tab to a link in them, Enter follows it, and the focus stays in the details.
    assert chromium.evaluate("document.activeElement.id") == "lanes"
    chromium.key("Enter")
    assert chromium.evaluate("document.activeElement.id") == "inspector"
    tab_to(chromium, "here.matches('.link') && here.innerText.startsWith('step')")
    chromium.key("Enter")
    chromium.wait("document.getElementById('inspector').dataset.shows === 'step'")
    assert chromium.evaluate("document.activeElement.id") == "inspector"
    assert text(chromium, "#said") == text(chromium, "#inspector h2")
    chromium.key("Escape")
    assert chromium.evaluate("document.activeElement.id") == "lanes"
    chromium.key("Escape")
    chromium.wait("kvtrace.view.selection === null")
    assert chromium.console == []


def test_the_close_up_without_a_mouse(chromium: Chromium, page: Path) -> None:
    chromium.open(page, "step=300")
    wait_for_text(chromium, "KV accesses")
    chromium.key("c", "c")
    chromium.wait("document.activeElement.className === 'close-up-area'")
    # The first layer, the second one; nearer; everything again.
    for key, said in ((".", "layer 0, read by attention"), (".", "layer 1, read by attention")):
        chromium.key(key, key)
        wait_for_text(chromium, said, "#close-up .about")
    assert "500 µs from +500 µs" in text(chromium, "#close-up .about")
    for key in ("+", "ArrowRight", "ArrowDown", "]", "0"):
        chromium.key(key, key if len(key) == 1 else None)
    tab_to(chromium, "here.innerText === 'Close'", SHIFT)
    chromium.key("Enter")
    assert not chromium.evaluate("document.getElementById('close-up').open")
    chromium.key("c", "c")
    chromium.wait("document.getElementById('close-up').open")
    chromium.key("Escape")
    assert not chromium.evaluate("document.getElementById('close-up').open")
    # The rest of the page had no part in it.
    assert chromium.evaluate("kvtrace.view.selection.id") == 300
    assert chromium.console == []


def test_the_help_names_every_key_that_does_something(chromium: Chromium, page: Path) -> None:
    chromium.open(page)
    chromium.key("?", "?")
    assert chromium.evaluate("document.getElementById('help').open")
    keys = " ".join(chromium.texts("#help dt"))
    for key in (
        "+ and -",
        "left and right",
        "up and down",
        ", and .",
        "[ and ]",
        "Backspace",
        "Esc",
        "Enter, Tab",
        "?",
    ):
        assert key in keys
    named = set(keys.replace(",", " ").split())
    assert {"s", "e", "z", "c", "p", "m", "t", "/", "0"} <= named
    chromium.key("Escape")
    chromium.key("t", "t")
    assert chromium.evaluate("document.getElementById('table').open")
    chromium.key("Escape")
    assert not chromium.evaluate("document.getElementById('table').open")


def test_runs_are_compared_without_a_mouse(chromium: Chromium, trace: Path, tmp_path: Path) -> None:
    other = create_trace(tmp_path / "smaller.duckdb", blocks=60)
    chromium.open(make_page(trace, other, name="keys"))
    for title in ("smaller", "trace"):
        chromium.key("e", "e")
        chromium.wait(f"document.querySelector('#inspector .tag')?.innerText === '{title}'")
    chromium.key("t", "t")
    assert len(chromium.texts("#table tbody tr")) == 2


@pytest.mark.skipif(not AXE.exists(), reason=MISSING)
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_to_object_to(page: Path, chromium: Chromium, dark: bool) -> None:
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    chromium.call("Emulation.setEmulatedMedia", features=[scheme])
    try:
        for fragment, keys in (
            ("", ""),
            ("step=300", ""),
            ("request=chat-03/turn-1", ""),
            ("step=300", "c"),
            ("", "?"),
        ):
            chromium.open(page, fragment)
            if fragment:
                chromium.wait("kvtrace.view.selection !== null && document.querySelector('#inspector h2') !== null")
            for key in keys:
                chromium.key(key, key)
            assert violations(chromium) == [], (fragment, keys)
    finally:
        chromium.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
