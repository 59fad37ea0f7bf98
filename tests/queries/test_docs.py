"""The page on adding queries and views is followed to the letter; the one on the studies names what there is."""

from __future__ import annotations

import re
from pathlib import Path

from kvtrace.queries import Trace, catalogue
from kvtrace.queries.catalogue import parse
from kvtrace.queries.plotting import find_plot
from kvtrace.queries.views import parse as parse_view

from .conftest import MakeTrace

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "add-a-query.md"


def examples() -> list[str]:
    return re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_pages_example_is_a_query(make_trace: MakeTrace) -> None:
    text, requests = examples()[:2]
    query = parse("example", text)
    [expected] = re.findall(r"```csv\n(.*?)```", PAGE.read_text(), re.DOTALL)

    with Trace(make_trace(requests)) as trace:
        rows = [trace.sql(query.sql({"at_least_ms": least}), format="arrow").to_pylist() for least in ("0", "9")]

    assert [list(map(str, row.values())) for row in rows[0]] == [row.split(",") for row in expected.split()[1:]]
    assert list(rows[0][0]) == expected.split()[0].split(",")
    assert rows[1] == []
    assert [column.name for column in query.columns] == ["request", "ttft_ms"]
    assert [(param.name, param.default) for param in query.params] == [("at_least_ms", "0")]


def test_the_pages_last_example_is_a_view(make_trace: MakeTrace) -> None:
    view = parse_view("example", examples()[2])
    events = """
        INSERT INTO request (request, engine_id) VALUES (1, 1), (2, 1);
        INSERT INTO request_event (engine_id, time_ns, step, request, op, computed_tokens) VALUES
            (1, 10, 1, 1, 'preempt', 30), (1, 20, 2, 1, 'resume', 0), (1, 30, 3, 1, 'preempt', 12)
    """

    with Trace(make_trace(events)) as trace:
        rows = trace.sql(view.sql, format="arrow").to_pylist()

    assert rows == [{"request": 1, "times": 2, "lost_tokens": 42}]
    assert [column.name for column in view.columns] == list(rows[0])
    assert set(view.needs) <= {"preemption", "request"}


def test_the_page_on_the_studies_names_queries_with_figures_and_their_plots() -> None:
    table = re.findall(r"\| `([a-z-]+)` \| (yes)? *\|", (DOCS / "studies-queries.md").read_text())
    assert len(table) > 10
    for name, plot in table:
        assert catalogue()[name].figures
        assert (find_plot(name) is not None) == bool(plot), name
