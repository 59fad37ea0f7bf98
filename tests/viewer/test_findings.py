"""Findings at the head of the page: the sentences of `kvtrace findings`, folded, and links to what they name."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from kvtrace.errors import KvtraceError
from kvtrace.queries import Trace
from kvtrace.queries.findings import NOTHING, Finding, find_findings
from kvtrace.viewer import summary
from tests.traces import write_trace

from .axe import AXE, MISSING, violations
from .chromium import Chromium, find_browser
from .pages import make_page, text, window
from .simulate import create_trace

OPEN = "document.querySelector('#findings details').open"
SELECTED = "kvtrace.view.selection && [kvtrace.view.selection.kind, kvtrace.view.selection.id]"


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace with a step of a second, which few others share the time of."""
    path = create_trace(tmp_path_factory.mktemp("findings") / "slow.duckdb")
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "UPDATE step_update SET update_ns = update_ns + 10**9, end_ns = end_ns + 10**9 WHERE step = 200"
        )
        connection.execute(
            "UPDATE step_schedule SET start_ns = start_ns + 10**9, scheduled_ns = scheduled_ns + 10**9 WHERE step > 200"
        )
        connection.execute(
            "UPDATE step_update SET update_ns = update_ns + 10**9, end_ns = end_ns + 10**9 WHERE step > 200"
        )
    return path


def found_in(path: Path) -> list[Finding]:
    with Trace(path) as trace:
        return find_findings(trace)


def test_the_page_begins_with_the_findings_of_the_command(chromium: Chromium, slow: Path) -> None:
    """Folded they take one line; opened each has its sentences, what to try, how it is known and the query."""
    found = found_in(slow)
    assert len(found) > 1
    chromium.open(make_page(slow))
    assert not chromium.evaluate(OPEN)
    folded = text(chromium, "#findings")
    assert folded.startswith("What cost most")
    assert found[0].text in folded
    assert f"and {len(found) - 1} more" in folded
    height = chromium.evaluate("document.querySelector('#findings').offsetHeight")
    chromium.key("f", "f")
    items = chromium.evaluate("[...document.querySelectorAll('#findings li')].map((each) => each.innerText)")
    for shown, finding in zip(items, found, strict=True):
        assert finding.text in shown
        assert f"{finding.basis}: kvtrace query {finding.evidence}" in shown
        assert finding.remedy.replace("`", "") in shown
    chromium.key("f", "f")
    assert chromium.evaluate("document.querySelector('#findings').offsetHeight") == height < 40
    assert chromium.console == []


def test_a_finding_leads_to_the_worst_step_or_request(chromium: Chromium, slow: Path) -> None:
    """By keyboard as by mouse; the step comes into sight."""
    named = [finding.worst for finding in found_in(slow) if finding.worst]
    assert {each.kind for each in named} == {"step", "request"}
    chromium.open(make_page(slow))
    chromium.key("f", "f")
    for number, worst in enumerate(named):
        chromium.evaluate("kvtrace.show(kvtrace.view.first, kvtrace.view.first + 1e6, false)")
        away = window(chromium)
        chromium.evaluate(f"document.querySelectorAll('#findings button.link')[{number}].focus()")
        chromium.key("Enter")
        chromium.wait(f"JSON.stringify({SELECTED}) === '[\"{worst.kind}\",{worst.number}]'")
        assert window(chromium) != away


def test_tab_comes_to_the_findings_first(chromium: Chromium, slow: Path) -> None:
    chromium.open(make_page(slow))
    chromium.key("Tab")
    assert chromium.evaluate("document.activeElement.closest('#findings') !== null")
    chromium.key(" ")
    assert chromium.evaluate(OPEN)
    chromium.key("Tab")
    assert chromium.evaluate("document.activeElement.matches('#findings .list')")


@pytest.mark.skipif(find_browser() is None or not AXE.exists(), reason=f"no chromium in PATH, or {MISSING}")
@pytest.mark.parametrize("dark", [False, True])
def test_opened_findings_are_accessible_in_a_narrow_window(slow: Path, dark: bool) -> None:
    with Chromium(1000, 700, dark) as narrow:
        narrow.open(make_page(slow))
        narrow.key("f", "f")
        assert violations(narrow) == []
        assert narrow.evaluate("document.querySelector('#findings .list').offsetHeight") < 0.3 * 700
        assert narrow.evaluate("document.documentElement.scrollWidth") <= 1000


def test_runs_to_compare_have_findings_of_their_own(chromium: Chromium, slow: Path, trace: Path) -> None:
    chromium.open(make_page(slow, trace, name="both"))
    chromium.key("f", "f")
    assert chromium.evaluate("[...document.querySelectorAll('#findings h2')].map((each) => each.innerText)") == [
        "slow",
        "trace",
    ]
    assert chromium.evaluate("document.querySelectorAll('#findings li').length") == len(
        found_in(slow) + found_in(trace)
    )


def test_a_run_in_which_nothing_stands_out_says_so(chromium: Chromium, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "quiet.duckdb")
    with duckdb.connect(str(path)) as connection:
        connection.execute("INSERT INTO request (request, engine_id, queued_ns) VALUES (1, 1, 5)")
        connection.execute("INSERT INTO engine (engine_id) VALUES (1)")
    chromium.open(make_page(path))
    assert text(chromium, "#findings") == f"What cost most {NOTHING}"


def test_a_question_that_fails_costs_no_page(chromium: Chromium, slow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Trace) -> list[Finding]:
        raise KvtraceError("no such column")

    monkeypatch.setattr(summary, "find_findings", fail)
    chromium.open(make_page(slow, name="failed"))
    assert text(chromium, "#findings").endswith("What cost most is not known; a question failed: no such column")
