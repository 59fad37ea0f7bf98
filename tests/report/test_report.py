"""The report of a trace: complete, whole, inert, static."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from kvtrace.cli.main import app
from kvtrace.errors import KvtraceError
from kvtrace.ingest.run import ingest
from kvtrace.ingest.sources import Sources
from kvtrace.queries import Trace, catalogue, grouped
from kvtrace.queries.facts import engines
from kvtrace.queries.missing import how_to_record
from kvtrace.queries.plotting import find_plot, new_figure, shows_something
from kvtrace.queries.text import inert
from kvtrace.reports import answers
from kvtrace.reports.report import write_report
from tests.elements import Page
from tests.viewer.chromium import Tab

from .conftest import HOSTILE, MakeTrace, run_sql


@pytest.fixture(scope="module")
def trace(make_trace: MakeTrace) -> Path:
    """Forty requests with hostile names, a hostile hook, command and model."""
    text = HOSTILE.replace("'", "''")
    return make_trace(
        run_sql(tag=HOSTILE)
        + f"""
        UPDATE request SET external_id = '{text}' || request;
        UPDATE engine SET model = '{text}';
        UPDATE run SET value = '{text}' WHERE key IN ('command', 'vllm_version');
        INSERT INTO hook VALUES (1, '{text}', 'absent', '{text}');
        INSERT INTO stream VALUES (1, 'request_event', 1, 10, 0, 7);
        """
    )


@pytest.fixture(scope="module")
def folder(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(trace, folder, rows=5)
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text())


def answered(trace: Path) -> set[str]:
    with Trace(trace) as opened:
        return {name for name in catalogue() if not opened.missing(name)}


def test_every_question_is_answered_or_listed_with_what_it_needs(trace: Path, page: Page) -> None:
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    names = answered(trace)
    assert {"step-timeline", "request-latency", "prefix-hit-rate", "run-summary"} <= names
    assert names == ids & set(catalogue())
    text = "".join(page.text)
    for name in set(catalogue()) - names:
        assert f"{name}{catalogue()[name].title}".replace("`", "") in text
    assert "gpu_tile" in text
    assert "--kv-level tile" in text


def test_contents_lead_to_every_answer_by_group(trace: Path, page: Page) -> None:
    links = [a["href"] for tag, a in page.elements if tag == "a" and (a["href"] or "").startswith("#")]
    queries = [query.name for group in grouped(catalogue().values()).values() for query in group]
    assert [link for link in links if link and link[1:] in catalogue()] == [
        f"#{name}" for name in queries if name in answered(trace)
    ]


def test_a_long_answer_is_cut_and_whole_beside_it(folder: Path, page: Page) -> None:
    assert "The first 5 of 40 rows; all of them: " in "".join(page.text)
    with (folder / "csv" / "request-latency.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 40
    assert rows[0]["ttft_ms"] == "10"
    assert rows[3]["external_id"] == f"{HOSTILE}4", "CSV is lossless"
    linked = {a["href"] for tag, a in page.elements if tag == "a" and not (a["href"] or "").startswith("#")}
    assert linked == {path.relative_to(folder).as_posix() for path in folder.glob("*/*")}


def test_every_plot_that_shows_something_is_there(folder: Path, page: Page) -> None:
    drawn = {path.stem for path in (folder / "plots").iterdir()}
    assert {"step-timeline", "request-latency", "prefix-hit-rate", "kv-utilisation"} <= drawn
    pictures = [a for tag, a in page.elements if tag == "img"]
    assert len(pictures) == len(drawn)
    assert all((a["src"] or "").startswith("data:image/") and a["alt"] for a in pictures)


def test_facts_and_gaps_are_at_the_top(page: Page) -> None:
    text = "".join(page.text)
    assert "16 tokens" in text
    assert "100 an engine" in text
    assert "request_event: 7 records were dropped." in text
    assert f"Hook {inert(HOSTILE)}: not found in this vLLM." in text
    assert "0 of 1 installed" in text


def test_the_title_is_model_and_date_and_each_tile_has_its_unit(make_trace: MakeTrace, tmp_path: Path) -> None:
    # GIVEN a run whose first request came at a known time, of which 780 of 4,780 prompt tokens came from the cache
    trace = make_trace(run_sql() + "INSERT INTO run VALUES ('started_ns', '1784000000000000000');")
    write_report(trace, tmp_path)
    page = (tmp_path / "report.html").read_text()
    # THEN its title says what ran and when, and its tiles say what their numbers count
    assert "<title>kvtrace: m, 2026-07-14 03:33 UTC</title>" in page
    tiles = re.findall(r'<div class="card"[^>]*><b>(.*?)</b><span>(.*?)</span>', page)
    assert tiles[:4] == [
        ("16.3%", "of prompt tokens from cache"),
        ("40", "requests, all finished"),
        ("29 ms", "to first token (TTFT), median; p95 47 ms"),
        ("10 ms", "per output token (TPOT), median; p95 10 ms"),
    ]


def test_an_answer_without_room_for_all_rows_has_the_worst(trace: Path, folder: Path) -> None:
    text = (folder / "report.md").read_text()
    answer = text.split("### request-latency")[1].split("###")[0]
    assert "The 5 of 40 rows with the most total_ms" in answer
    rows = [line.split(" | ") for line in answer.splitlines() if line.startswith("| 1 |")]
    assert [row[1] for row in rows] == ["40", "39", "38", "37", "36"], "the last requests take the longest"


def test_a_plot_with_too_little_to_see_is_left_out(make_trace: MakeTrace, tmp_path: Path) -> None:
    # GIVEN a run of one job THEN there is no plot of its completion time, and a run of five has it
    for sessions, drawn in ((1, False), (5, True)):
        trace = make_trace(run_sql(sessions=sessions, turns=1), name=f"of{sessions}")
        write_report(trace, tmp_path)
        assert (tmp_path / "plots" / "job-completion.svg").exists() == drawn


def test_each_number_says_how_it_was_computed(page: Page) -> None:
    text = "".join(page.text)
    query = catalogue()["request-latency"]
    assert query.body in text
    for column in query.columns:
        assert column.meaning.replace("`", "") in text
    assert "first_step" in text, "a parameter"


def test_hostile_text_stays_text(page: Page) -> None:
    """GIVEN ids, names and options that are markup THEN the page has its own elements only, and shows them as text."""
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "iframe", "object", "link", "form", "svg", "base"})
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
    text = "".join(page.text)
    assert inert(HOSTILE)[:60] in text
    assert "{{7*7}}" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_the_page_fetches_nothing(folder: Path, page: Page) -> None:
    source = (folder / "report.html").read_text()
    [policy] = [a["content"] or "" for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?:https?:)?//""", source)


def test_markdown_is_tables_pictures_and_inert_text(folder: Path) -> None:
    source = (folder / "report.md").read_text()
    tokens = MarkdownIt("commonmark").enable("table").parse(source)
    leaves = [leaf for token in tokens for leaf in [token, *(token.children or [])]]
    html = {leaf.content.strip() for leaf in leaves if leaf.type in {"html_block", "html_inline"}}
    summaries = ("How each number was computed", "Settings of each engine")
    assert html == {*(f"<details><summary>{text}</summary>" for text in summaries), "</details>"}
    links = {leaf.attrs["href"] for leaf in leaves if leaf.type == "link_open"}
    assert not [link for link in links if not re.fullmatch(r"#[\w-]+|(csv|plots)/[\w-]+\.(csv|svg)", str(link))]
    codes = {leaf.content for leaf in leaves if leaf.type == "code_inline"}
    assert inert(f"{HOSTILE}1") in codes
    tables = [token for token in tokens if token.type == "table_open"]
    assert len(tables) > len(list((folder / "csv").iterdir()))
    assert "\x1b" not in source


def test_a_browser_shows_it_without_complaint(folder: Path, tab: Tab) -> None:
    browser = tab(1280)
    browser.call("Page.navigate", url=(folder / "report.html").resolve().as_uri())
    browser.wait("document.readyState === 'complete' && location.protocol === 'file:'")
    assert browser.console == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:image/"))] == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= 1280
    assert browser.evaluate("[...document.images].every((image) => image.naturalWidth > 0)")


def test_on_paper_no_table_is_cut_off(folder: Path, tab: Tab) -> None:
    """A4 across, less its margins, is 275 mm wide: 1,039 pixels."""
    browser = tab(1039)
    browser.call("Page.navigate", url=(folder / "report.html").resolve().as_uri())
    browser.wait("document.readyState === 'complete' && location.protocol === 'file:'")
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.frame()
    assert browser.evaluate("document.documentElement.scrollWidth") <= 1039


def test_an_empty_trace_has_a_report_of_questions(make_trace: MakeTrace, tmp_path: Path) -> None:
    made = write_report(make_trace(), tmp_path / "new" / "report")
    assert made.answered == []
    assert {item.query.name for item in made.unanswered} == set(catalogue())
    Page(made.page.read_text())


def test_a_plot_that_fails_leaves_its_answer(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(frame: object) -> None:
        raise ZeroDivisionError("<b>no</b>")

    monkeypatch.setattr("kvtrace.queries.trace.plot_of", lambda name: fails)
    monkeypatch.setattr(answers, "catalogue", lambda: {"request-latency": catalogue()["request-latency"]})
    done = CliRunner().invoke(app, ["report", str(trace), "-o", str(tmp_path)])
    assert done.exit_code == 0
    assert "request-latency: The plot could not be drawn: ZeroDivisionError: <b>no</b>" in done.stderr
    text = "".join(Page((tmp_path / "report.html").read_text()).text)
    assert "The plot could not be drawn: ZeroDivisionError: <b>no</b>" in text
    assert "40 rows" in text


def test_a_query_that_fails_is_said(make_trace: MakeTrace, tmp_path: Path) -> None:
    """A trace of the same version can lack a table that a newer kvtrace asks for."""
    broken = make_trace(run_sql() + "DROP TABLE cost_model")
    done = CliRunner().invoke(app, ["report", str(broken), "-o", str(tmp_path)])
    assert done.exit_code == 0
    assert re.search(r"^kvtrace: cost-model: it failed: .*cost_model", done.stderr, re.MULTILINE)
    page = (tmp_path / "report.html").read_text()
    assert "it failed: an earlier kvtrace made this trace" in page
    assert 'id="request-latency"' in page


def test_an_earlier_report_is_replaced_and_nothing_else(make_trace: MakeTrace, trace: Path, tmp_path: Path) -> None:
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "mine.csv").write_text("x")
    (tmp_path / "csv" / "tier-hits.csv").write_text("of an earlier report")
    write_report(make_trace(), tmp_path)
    assert [path.name for path in (tmp_path / "csv").iterdir()] == ["mine.csv"]
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(KvtraceError, match="kvtrace did not make it"):
        write_report(make_trace(), tmp_path)
    assert (tmp_path / "report.html").read_text() == "mine"


def test_a_needed_table_without_rows_has_advice() -> None:
    for query in catalogue().values():
        for table in query.needs:
            assert how_to_record(table)
    assert "--kv-level tile" in how_to_record("gpu_tile")
    assert "--nsys" in how_to_record("gpu_activity")
    assert "connector" in how_to_record("tier_block")
    assert "hook" in how_to_record("step_schedule")


def test_a_trace_without_a_recording_has_no_hooks_to_look_at(tmp_path: Path) -> None:
    """GIVEN arrivals alone THEN neither the report nor a query without rows sends the reader to table `hook`."""
    (tmp_path / "a.jsonl").write_text('{"timestamp": 0, "input_length": 5, "output_length": 1}\n')
    trace = ingest(None, tmp_path / "t.duckdb", sources=Sources(requests=(tmp_path / "a.jsonl",))).target
    done = CliRunner().invoke(app, ["report", str(trace), "-o", str(tmp_path / "report")])
    assert done.exit_code == 0, done.exception
    page = (tmp_path / "report" / "report.html").read_text()
    assert "made of requests, which does not tell it" in page
    assert "hook is missing" not in page
    done = CliRunner().invoke(app, ["query", "run-summary", str(trace)])
    assert done.exit_code == 0, done.exception
    assert "made of requests" in done.stderr
    assert "hook" not in done.stderr


def test_a_profile_alone_has_no_engine(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 0, "dur": 1, "args": {"device": 0}}
    (tmp_path / "a.json").write_text(json.dumps({"traceEvents": [event]}))
    trace = ingest(None, tmp_path / "t.duckdb", sources=Sources(torch=(tmp_path / "a.json",))).target
    with Trace(trace) as opened:
        assert engines(opened) == []


def test_a_query_is_drawn_by_the_command_line_and_in_python(trace: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    done = run(app, ["query", "step-timeline", str(trace), "--plot", str(tmp_path / "x.png"), "-p", "last_step=9"])
    assert (done.exit_code, done.stdout.strip()) == (0, str(tmp_path / "x.png"))
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    with Trace(trace) as opened:
        assert opened.plot("step-timeline", last_step=9).get_suptitle() == "Scheduler steps over time"
        with pytest.raises(KvtraceError, match=r"run-summary has no plot; these have one: .*step-timeline"):
            opened.plot("run-summary")
    for arguments, complaint in ((["run-summary"], "has no plot"), (["step-timeline"], "png, svg, pdf")):
        done = run(app, ["query", *arguments, str(trace), "--plot", str(tmp_path / "x.gif")])
        assert complaint in str(done.exception)
    assert not (tmp_path / "x.gif").exists()


def test_plots_and_groups_are_marked_in_the_list() -> None:
    listed = CliRunner().invoke(app, ["query"]).stdout
    for name in catalogue():
        [line] = [line for line in listed.splitlines() if line.startswith(f"  {name} ")]
        assert ("*" in line.split(catalogue()[name].title.split()[0])[0]) == (find_plot(name) is not None)
    assert [line for line in listed.splitlines() if line.strip() in grouped(catalogue().values())]


@pytest.mark.parametrize(("values", "drawn"), [([math.nan] * 3, False), ([math.nan, 3.0, 4.0, 5.0], True), ([], False)])
def test_a_plot_of_values_that_nobody_knows_is_left_out(values: list[float], drawn: bool) -> None:
    figure = new_figure("Throughput", source="step_schedule")
    figure.axes[0].plot([1.0] * len(values), values)
    assert shows_something(figure) is drawn


def test_a_report_of_two_clocks_claims_no_span(make_trace: MakeTrace, tmp_path: Path) -> None:
    """GIVEN an engine whose times count from 0 and one of 2023 THEN neither when nor how long is said."""
    sql = (
        "INSERT INTO step_schedule (engine_id, step, start_ns, scheduled_ns) VALUES (1, 1, 1000, 1000), (2, 1, {}, {})"
    )
    trace = make_trace(sql.format(*[1_700_000_000 * 10**9] * 2))
    write_report(trace, tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    assert "First to last event" not in page
    with Trace(trace) as opened:
        assert opened.query("run-summary", format="arrow")["span_s"].to_pylist() == [None]
