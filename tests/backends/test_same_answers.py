"""Two engines' answers are compared by what engines may differ in, and by nothing more."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest


@pytest.fixture(autouse=True)
def bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "bench")


def compared(wanted: list[float | None], found: list[float | None]) -> str | None:
    from same_answers import difference

    column = [pa.table({"ms": pa.array(values, pa.float64())}) for values in (wanted, found)]
    return difference(*column)


def test_what_a_difference_of_large_numbers_leaves_is_the_same() -> None:
    # A residual of 16.59 ms - 16.59 ms, as DuckDB and Spark gave it.
    assert compared([0.447, -7.635061699318157e-06], [0.447, -7.635061685107303e-06]) is None
    assert compared([1.0, float("inf")], [1.0 + 1e-10, float("inf")]) is None


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ([0.447, -7.635061e-06], [0.447, -7.635062e-06]),  # a picosecond, beside half a millisecond
        ([1000.0, 1e-06], [1000.0, 2e-06]),  # a nanosecond, beside a second
        ([1.0], [1.0 + 1e-8]),
        ([float("inf"), 1.0], [float("inf"), 1.1]),
        ([float("inf")], [1.0]),
        ([1.0], [float("inf")]),
        ([float("nan"), 1.0], [float("nan"), 1.1]),
        ([0.0], [None]),
        ([0.0, 0.0], [0.0, 1e-300]),
    ],
)
def test_any_other_difference_is_said(wanted: list[float | None], found: list[float | None]) -> None:
    row = len(wanted) - 1
    assert f"1 rows differ; row {row}" in (compared(wanted, found) or "")
