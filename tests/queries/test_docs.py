"""The page on adding queries and views is followed to the letter; the one on the studies names what there is."""

from __future__ import annotations

import re
from pathlib import Path

from kvtrace.ingest.views import parse as parse_view
from kvtrace.queries import Trace, catalogue
from kvtrace.queries.catalogue import parse
from kvtrace.queries.plotting import find_plot

from .conftest import MakeTrace

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "add-a-query.md"


def examples() -> list[str]:
    return re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_pages_example_is_a_query(make_trace: MakeTrace) -> None:
    query = parse("example", examples()[0])
    requests = "INSERT INTO request (request, arrival_ns, first_token_ns) VALUES (1, 0, 4000000), (2, 0, 9000000)"

    with Trace(make_trace(requests)) as trace:
        rows = trace.sql(query.sql({"at_least_ms": "5"}), format="arrow").to_pylist()

    assert rows == [{"request": 2, "ttft_ms": 9.0}]
    assert [column.name for column in query.columns] == ["request", "ttft_ms"]
    assert [(param.name, param.default) for param in query.params] == [("at_least_ms", "0")]


def test_the_pages_second_example_is_a_view(make_trace: MakeTrace) -> None:
    view = parse_view("example", examples()[1])
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
