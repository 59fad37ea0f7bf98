"""Hostile text in every text column of a trace: what shows it shows it as text; what carries it carries it whole."""

from __future__ import annotations

import csv
import json
import re
import unicodedata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import duckdb
import pytest
from matplotlib.text import Text
from typer.testing import CliRunner

from kvtrace.cli.main import app
from kvtrace.cli.output import Format, write_result
from kvtrace.errors import KvtraceError
from kvtrace.ingest.schema.trace import TRACE_VERSION
from kvtrace.queries import Trace, catalogue
from kvtrace.queries.plotting import has_plot, save
from kvtrace.reports import answers
from kvtrace.reports.compare import compare
from kvtrace.reports.report import write_report
from kvtrace.reports.side_by_side import write_comparison
from kvtrace.viewer.page import make_page
from tests.elements import Page
from tests.hostile.conftest import hostile
from tests.hostile.marked import text_columns
from tests.viewer.chromium import Tab

LOOSE = """(() => {
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = []
    while (walk.nextNode()) {
        const node = walk.currentNode, around = node.parentElement
        const isolated = getComputedStyle(around).unicodeBidi.includes('isolate')
        const alone = isolated || around.closest('bdi, script, style, option')
        if (node.data.includes('\\u202e') && !alone) found.push(around.outerHTML.slice(0, 300))
    }
    return found
})()"""
"""Elements whose text has an override that nothing isolates."""
STEERING = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def steering(text: str) -> set[str]:
    """Characters that a terminal or a page would act on."""
    return {char for char in text if unicodedata.category(char) in STEERING} - {"\n"}


def check_page(page: str) -> None:
    found = Page(page)
    assert "onerror" in page, "the page has none of the hostile texts"
    assert not {name for name in found.names if name.startswith("@on") or "evil" in name}
    targets = [
        value for _, attributes in found.elements for name, value in attributes.items() if name in ("src", "href")
    ]
    assert not [value for value in targets if "evil" in str(value)]
    assert "script" not in found.names
    assert steering(page) <= {"\t"}


def test_every_text_column_is_hostile(hostile_trace: Path) -> None:
    """The walk over the schema finds text where it is, so that what follows tests all of it."""
    with duckdb.connect(str(hostile_trace), read_only=True) as connection:
        for table, columns in text_columns(connection).items():
            for column, type_ in columns:
                if type_ == "VARCHAR" and table != "run" and column not in ("shape", "stride"):
                    found = connection.execute(f'SELECT DISTINCT "{column}" FROM "{table}"').fetchall()
                    assert found == [(hostile(table, column),)]


def test_tables_in_the_terminal(hostile_trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each table, view and query: as many lines as rows, and nothing that steers."""
    with Trace(hostile_trace) as trace:
        names = trace.sql("SELECT table_name FROM information_schema.tables", "arrow").to_pydict()["table_name"]
        marked = 0
        for name in (*names, *catalogue()):
            reader = trace.query(name, "batches") if name in catalogue() else trace.sql(f'FROM "{name}"', "batches")
            rows = reader.read_all()
            write_result(rows.to_reader(), Format.table, None, 0)
            text = capsys.readouterr().out
            assert not steering(text), name
            assert len(text.splitlines()) in (len(rows) + 2, len(rows) + 3), name
            marked += "onerror" in text
    assert marked > 60


def test_plots(hostile_trace: Path, tmp_path: Path) -> None:
    """No figure has a text that steers or that matplotlib would read as a formula; a picture has no active part."""
    from matplotlib import pyplot

    shown = 0
    with Trace(hostile_trace) as trace:
        for name in filter(has_plot, catalogue()):
            figure = trace.plot(name)
            texts = [text.get_text() for text in figure.findobj(Text)]
            assert not steering("".join(texts)), name
            shown += any("onerror" in text or "img" in text for text in texts)
            pyplot.close(figure)
        save(trace.plot("request-latency"), tmp_path / "plot.svg")
    assert shown >= 5
    picture = ElementTree.parse(tmp_path / "plot.svg")
    assert not {element.tag for element in picture.iter() if re.search("script|image|foreign|}a$", str(element.tag))}


def test_the_report(hostile_trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_picture", lambda trace, query: (None, None))  # they take ten times as long
    made = write_report(hostile_trace, tmp_path / "report")
    check_page(made.page.read_text(encoding="utf-8"))
    markdown = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert not steering(markdown)
    assert "onerror" in markdown
    prose = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", markdown, flags=re.DOTALL)  # in code nothing is active
    assert "onerror" in prose
    assert not re.search(r"(?<!\\)<img|(?<!\\)\]\(http://evil", prose)


def test_a_comparison(hostile_trace: Path, tmp_path: Path) -> None:
    made = compare([hostile_trace, hostile_trace])
    check_page(write_comparison(made, tmp_path / "out").read_text(encoding="utf-8"))
    shown = CliRunner().invoke(app, ["compare", str(hostile_trace), str(hostile_trace)])
    assert shown.exit_code == 0
    assert not steering(shown.output)


def test_the_page_as_a_browser_reads_it(hostile_trace: Path, tab: Tab, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    make_page([hostile_trace], path, max_bytes=10_000_000)
    page = path.read_text(encoding="utf-8")
    assert "onerror=alert" not in page, "texts of a trace are in the page as packed data only"
    assert page.count("<script") == page.count("</script>")
    browser = tab()
    browser.open(path)
    assert browser.evaluate("document.images.length") == 0
    assert "onerror" in browser.evaluate("document.body.innerText")
    assert browser.evaluate(LOOSE) == [], "text that could turn its neighbours around"
    assert [each for each in browser.console if "alert" in each] == []


def test_exports_carry_text_whole(hostile_trace: Path, tmp_path: Path) -> None:
    """Formats for programs are lossless: quoted CSV, escaped JSON, UTF-8 fields."""
    assert CliRunner().invoke(app, ["export", str(hostile_trace), "--csv", str(tmp_path / "csv")]).exit_code == 0
    with (tmp_path / "csv" / "request.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["session"] for row in rows] == [hostile("request", "session")] * 2
    assert CliRunner().invoke(app, ["export", str(hostile_trace), "--otlp", str(tmp_path / "o.json")]).exit_code == 0
    spans = (tmp_path / "o.json").read_text(encoding="utf-8")
    assert not steering(spans)
    assert json.dumps(hostile("request", "external_id")) in spans
    done = CliRunner().invoke(app, ["export", str(hostile_trace), "--perfetto", str(tmp_path / "p")])
    assert done.exit_code == 0, done.output
    packed = b"".join(path.read_bytes() for path in (tmp_path / "p").iterdir() if path.name != "manifest.json")
    assert hostile("request", "external_id").encode() in packed


@pytest.mark.parametrize("name", ["../../escaped", "a/b", "", "x\ny", "\x1b[31m"])
def test_a_strangers_table_names_no_file(name: str, tmp_path: Path) -> None:
    """GIVEN a trace with a table whose name is a path, THEN nothing is exported, and nothing written elsewhere."""
    path = tmp_path / "in" / "trace.duckdb"
    path.parent.mkdir()
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE TABLE run AS SELECT 'trace_version' AS key, '{TRACE_VERSION}' AS value")
        quoted = name.replace('"', '""') or " "
        connection.execute(f'CREATE TABLE "{quoted}" AS SELECT 1 AS x')
    for kind in ("--csv", "--parquet"):
        failed = CliRunner().invoke(app, ["export", str(path), kind, str(tmp_path / "in" / "out")])
        assert isinstance(failed.exception, KvtraceError)
        assert "which kvtrace did not make" in str(failed.exception)
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert files == [path]


def test_what_ingest_says_of_a_hostile_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Categories, fields and file names reach the terminal in tables and warnings."""
    name = "[b]\x1b[31mx.json"
    event: dict[str, Any] = {
        "ph": "X",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "dur": 1,
        "cat": "[/red]\x1b[2J\u202e",
        "name": "n",
    }
    (tmp_path / name).write_text(json.dumps({"traceEvents": [event]}))
    lookup = {"kind": "prefix_cache_lookup", "request_id": "a", "\x1b[31m[/x]": 1}
    (tmp_path / "s.jsonl").write_text(json.dumps(lookup) + "\n")
    files = ["--torch-trace", str(tmp_path / name), "--sched-trace", str(tmp_path / "s.jsonl")]
    done = CliRunner().invoke(app, ["ingest", *files, "-o", str(tmp_path / "t.duckdb")])
    assert done.exit_code == 0, done.exception
    assert not steering(done.output)
    assert "\\u202e" in done.output


def test_an_error_says_it_in_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvtrace.cli import main

    path = tmp_path / "\x1b[31m\u202e.duckdb"
    monkeypatch.setattr("sys.argv", ["kvtrace", "query", "run-summary", str(path)])
    with pytest.raises(SystemExit):
        main.main()
    assert not steering(capsys.readouterr().err)
