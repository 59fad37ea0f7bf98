"""Statistics and intervals against cases worked out by hand and against known distributions."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from kvtrace.queries.statistics import (
    FEWEST_UNITS,
    Difference,
    Floats,
    Interval,
    enough,
    expanded_tail,
    interval,
    paired_difference,
    statistic,
    value_of,
)

T_975 = {8: 2.3646, 12: 2.2010, 30: 2.0452, 200: 1.9720}
"""Student's quantiles from a table, by units: one degree of freedom less."""


def column(*values: float) -> Floats:
    return np.array(values, dtype=float)[:, None]


@pytest.mark.parametrize(
    ("name", "weights", "expected"),
    [
        ("mean", [1, 1, 1, 1], 4.0),
        ("mean", [0, 3, 0, 1], (3 * 1 + 9) / 4),
        ("p50", [1, 1, 1, 1], 2.0),
        ("p50", [0, 1, 1, 2], 4.0),
        ("p95", [1, 1, 1, 1], 9.0),
        ("p95", [19, 1, 0, 0], 2.0),
    ],
)
def test_statistics_of_weighted_values(name: str, weights: list[int], expected: float) -> None:
    """GIVEN the values 2, 1, 4, 9 drawn so often THEN the statistic is that of the drawn values."""
    found = statistic(name, column(2, 1, 4, 9), np.array([weights], dtype=float))
    assert found.tolist() == [expected]


def test_ratio_is_that_of_sums() -> None:
    values = np.array([[10.0, 0.0, 40.0], [30.0, 20.0, 60.0]])
    assert statistic("ratio", values, np.array([[1.0, 1.0], [2.0, 0.0]])).tolist() == [0.6, 0.25]


def test_a_constant_difference_has_an_interval_of_no_width() -> None:
    base = column(*range(20))
    for name in ("mean", "p50", "p95"):
        found = interval(name, base, base + 3)
        assert found is not None
        assert (found.low, found.high, found.units) == (pytest.approx(3), pytest.approx(3), 20)


def test_interval_of_a_case_worked_out_by_hand() -> None:
    """GIVEN eight pairs of which one differs, by 8 THEN the mean differs by as often as that pair is drawn.

    That is binomial with 8 draws of 1/8: 0.344, 0.736, 0.933, 0.989, 0.999 for at most 0, 1, 2, 3, 4. With t of 7
    degrees the tails are 0.57%, so the interval reaches from 0 to 4.
    """
    found = interval("mean", column(*[0] * 8), column(8, *[0] * 7))
    assert found is not None
    assert (found.low, found.high) == (0, 4)


@pytest.mark.parametrize(("units", "t"), T_975.items())
def test_tails_are_those_of_students_t(units: int, t: float) -> None:
    wanted = NormalDist().cdf(-t * math.sqrt(units / (units - 1)))
    assert expanded_tail(units) == pytest.approx(wanted, rel=0.03)


def test_too_few_pairs_have_no_interval() -> None:
    few = column(*range(FEWEST_UNITS - 1))
    assert interval("mean", few, few) is None
    assert interval("p95", column(*range(19)), column(*range(19))) is None
    assert interval("p95", column(*range(20)), column(*range(20))) is not None
    sessions = np.arange(40) % (FEWEST_UNITS - 1)
    assert interval("mean", column(*range(40)), column(*range(40)), sessions) is None


def test_the_same_pairs_give_the_same_interval() -> None:
    random = np.random.default_rng(3)
    base, other = random.exponential(size=(50, 1)), random.exponential(size=(50, 1))
    assert interval("p50", base, other) == interval("p50", base, other)


def coverage(name: str, trials: int, pairs: int, true: float, seed: int) -> float:
    """Return the coverage of the true difference: pairs share a lognormal part; the other run is 1 slower."""
    random = np.random.default_rng(seed)
    hits = 0
    for _ in range(trials):
        shared = random.lognormal(size=(pairs, 1))
        base, other = (shared + random.exponential(size=(pairs, 1)) for _ in range(2))
        found = interval(name, base, other + 1)
        assert found is not None
        hits += found.low <= true <= found.high
    return hits / trials


@pytest.mark.parametrize(
    ("name", "trials", "pairs", "most"), [("mean", 250, 10, 0.98), ("mean", 250, 40, 0.98), ("p50", 120, 40, 1.0)]
)
def test_95_of_100_intervals_hold_the_truth(name: str, trials: int, pairs: int, most: float) -> None:
    """Two runs of one distribution, shifted by 1: a 95% interval misses in about 5% of the trials (sd 1.4%).

    That of a median is on the safe side: its bootstrap samples can take few values only.
    """
    assert 0.92 <= coverage(name, trials, pairs, 1.0, seed=7) <= most


def test_turns_of_a_session_are_drawn_together() -> None:
    """GIVEN sessions whose turns are slow together WHEN sessions are drawn THEN 95% hold the truth; else far fewer."""
    random = np.random.default_rng(11)
    clusters = np.repeat(np.arange(12), 6)
    hits = {True: 0, False: 0}
    for _ in range(120):
        base = random.normal(size=(72, 1))
        other = base + 1 + random.normal(size=12)[clusters][:, None] + 0.3 * random.normal(size=(72, 1))
        for together in hits:
            found = interval("mean", base, other, clusters if together else None)
            assert found is not None
            hits[together] += found.low <= 1 <= found.high
    assert hits[True] / 120 >= 0.91
    assert hits[False] / 120 <= 0.7


def test_an_interval_is_as_wide_as_theory_has_it() -> None:
    """The standard error of the mean of 100 zeros and ones is 0.05; the interval reaches 1.98 of them to each side."""
    found = paired_difference("mean", column(*[0.0] * 100), column(*[0.0, 1.0] * 50))
    assert found is not None
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == (pytest.approx(0.4, abs=0.015), pytest.approx(0.6, abs=0.015))


def test_a_difference_is_over_pairs_that_both_have_a_value() -> None:
    base, other = column(1, 2, math.nan, 4), column(2, 4, 6, math.nan)
    assert paired_difference("mean", base, other) == Difference(base=1.5, value=1.5, pairs=2)
    assert paired_difference("mean", base[2:], other[2:]) is None


@pytest.mark.parametrize(
    ("low", "high", "direction"), [(1, 2, "higher"), (-2, -1, "lower"), (-1, 1, "unclear"), (0, 1, "unclear")]
)
def test_a_difference_has_a_direction_if_its_interval_leaves_out_zero(low: float, high: float, direction: str) -> None:
    assert Difference(10, 0.5, 20, Interval(low, high, 20)).direction == direction
    assert Difference(10, 0.5, 20).direction == ""


def test_a_percentile_needs_a_value_beyond_it() -> None:
    assert [enough("p99", 8, rows) for rows in (99, 100)] == [False, True]
    assert [enough("p50", units, 100) for units in (7, 8)] == [False, True]
    assert value_of("p99", list(range(1, 101))) == 99
