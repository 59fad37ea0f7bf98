"""Each plot, drawn from its query's tiny trace and from an empty one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from kvtrace.errors import KvtraceError
from kvtrace.queries import Trace, catalogue
from kvtrace.queries.marks import means, name_rows
from kvtrace.queries.plotting import MANY_MARKS, find_plot, new_figure, save

from .conftest import MakeTrace

HERE = Path(__file__).parent
PLOTTED = [name for name in catalogue() if find_plot(name)]
SIGNATURES = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def test_every_plot_is_a_querys() -> None:
    files = {path.stem.replace("_", "-") for path in (HERE.parents[1] / "queries" / "plots").glob("[!_]*.py")}
    assert files == set(PLOTTED)


@pytest.mark.parametrize("name", PLOTTED)
def test_plot_of_a_trace_has_a_title_labelled_axes_and_marks(name: str, make_trace: MakeTrace) -> None:
    with Trace(make_trace((HERE / name / "trace.sql").read_text())) as trace:
        figure = find_plot(name)(trace.query(name))  # type: ignore[misc]
    assert figure.get_suptitle()
    drawn = [axes for axes in figure.axes if axes.has_data()]
    assert drawn
    assert any(axes.get_xlabel() for axes in drawn)
    assert any(axes.get_ylabel() for axes in drawn)


@pytest.mark.parametrize("name", PLOTTED)
def test_plot_of_no_rows_is_an_empty_figure(name: str, make_trace: MakeTrace) -> None:
    with Trace(make_trace()) as trace:
        figure = find_plot(name)(trace.query(name))  # type: ignore[misc]
    assert not any(axes.has_data() for axes in figure.axes)


@pytest.mark.parametrize("kind", SIGNATURES)
def test_a_plot_is_written_the_same_every_time(kind: str, tmp_path: Path) -> None:
    contents = []
    for name in ("a", "b"):
        figure = new_figure("Costs $5 and $6", source="a table")
        figure.axes[0].plot([1, 2], [3, 4])
        save(figure, tmp_path / f"{name}.{kind}")
        contents.append((tmp_path / f"{name}.{kind}").read_bytes())
    assert contents[0].startswith(SIGNATURES[kind])
    assert contents[0] == contents[1]


@pytest.mark.parametrize(("path", "message"), [("x.gif", "png, svg, pdf"), ("no/x.png", "cannot write")])
def test_a_plot_that_cannot_be_written_says_why(path: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(KvtraceError, match=message):
        save(new_figure("a"), tmp_path / path)


def test_names_from_a_trace_are_drawn_as_they_are() -> None:
    axes = new_figure("a").axes[0]
    name_rows(axes, ["$x^2$\x1b[2J", "k" * 60])
    shown = [text.get_text() for text in axes.get_yticklabels()]
    assert shown == [r"\$x^2\$\x1b[2J", "k" * 43 + "…"]


@pytest.mark.parametrize("name", ["job-completion", "job-kv"])
@pytest.mark.filterwarnings("error:.*axes sizes collapsed:UserWarning")
def test_a_jobs_long_name_leaves_room_for_the_plot(name: str, make_trace: MakeTrace) -> None:
    with Trace(make_trace((HERE / name / "trace.sql").read_text())) as trace:
        frame = trace.query(name)
    frame["session"] = [f"3f2b8c1e-{'tenant/' * 12}{number:04}" for number in range(len(frame))]
    figure = find_plot(name)(frame)  # type: ignore[misc]
    FigureCanvasAgg(figure).draw()
    axes, inside = figure.axes[0], figure.bbox.padded(5)
    ticks = [text for text in axes.get_xticklabels() if axes.viewLim.x0 <= text.get_position()[0] <= axes.viewLim.x1]
    boxes = [text.get_window_extent() for text in (figure._suptitle, *ticks)]  # type: ignore[attr-defined]
    assert all(inside.fully_contains(*corner) for box in boxes for corner in (box.min, box.max))
    assert axes.get_window_extent().height > figure.bbox.height / 3


def test_areas_of_many_rows_are_means_that_keep_the_total() -> None:
    rows = 2 * MANY_MARKS + 1
    places, ones, evens = np.arange(rows, dtype=float), np.ones(rows), np.arange(rows) % 2.0
    assert [len(column) for column in means(places[:MANY_MARKS], ones[:MANY_MARKS])] == [MANY_MARKS] * 2
    where, level, alternating = means(places, ones, evens)
    assert len(where) == -(-rows // 3) <= MANY_MARKS
    assert where[:2].tolist() == [1, 4]
    assert set(level) == {1}
    assert alternating[:2].tolist() == [1 / 3, 2 / 3]


def test_a_query_without_a_plot_has_none() -> None:
    assert find_plot("no-such-query") is None


class TestPassesOfKvAccess:
    @pytest.fixture
    def frame(self) -> pd.DataFrame:
        """Nine requests of which the last one's prompt is computed; each reads a block for 2 us."""
        rows = [
            {"pass": 1, "pass_ms": 0.0, "step": 4, "layer": 0, "head": 0, "pool_blocks": 99}
            | {"phase": "prefill" if request == 9 else "decode", "request": request, "block_id": request}
            | {"k_start_ms": 0.001, "k_end_ms": 0.003, "v_start_ms": 0.003, "v_end_ms": 0.005}
            for request in range(1, 10)
        ]
        return pd.DataFrame(rows)

    def test_short_passes_are_drawn_in_microseconds(self, frame: pd.DataFrame) -> None:
        keys, values = find_plot("kv-read-pattern")(frame).axes  # type: ignore[misc]
        assert values.get_xlabel().endswith("(us)")
        assert keys.collections[0].get_segments()[0][:, 0] == pytest.approx([1, 3])
        assert values.collections[0].get_segments()[0][:, 0] == pytest.approx([3, 5])

    def test_long_passes_are_drawn_in_milliseconds(self, frame: pd.DataFrame) -> None:
        frame["v_end_ms"] = 2.0
        keys, values = find_plot("kv-read-pattern")(frame).axes  # type: ignore[misc]
        assert values.get_xlabel().endswith("(ms)")
        assert keys.collections[0].get_segments()[0][:, 0] == pytest.approx([0.001, 0.003])

    def test_a_request_whose_prompt_is_computed_has_a_colour_of_its_own(self, frame: pd.DataFrame) -> None:
        [legend] = find_plot("kv-read-pattern")(frame).legends  # type: ignore[misc]
        assert [text.get_text() for text in legend.get_texts()] == ["R1", "R2", "R3", "R4", "R5", "R9", "3 others"]
