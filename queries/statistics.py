"""Statistics of samples, and bootstrap intervals of differences between two: the only module that computes them.

A bootstrap sample is a row of weights: how often each unit was drawn. So one call computes a statistic of thousands of
samples at once. A unit is a pair of values or, where values depend on each other (the turns of a session), a cluster of
pairs, which is drawn whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESAMPLES = 4000
RESAMPLES_OF_MANY = 1000
MANY_UNITS = 20_000
"""From so many units on the samples differ little, and cost much: `RESAMPLES_OF_MANY` are drawn."""

SEED = 20
LEVEL = 0.95
FEWEST_UNITS = 8
"""Below that many units no interval is given: it would say more than the data."""

RULE = (
    f"There is no interval below {FEWEST_UNITS} pairs or sessions, none for a 95th percentile of fewer than 20 pairs, "
    "and none for a 99th of fewer than 100"
)
"""`enough` as a sentence for readers of a report."""

_CELLS = 4_000_000
"""Weights held at once."""


@dataclass(frozen=True)
class Interval:
    """A 95% bootstrap interval, and how many pairs or clusters were drawn from."""

    low: float
    high: float
    units: int


@dataclass(frozen=True)
class Difference:
    """How far a statistic of one sample is from that of another.

    Attributes:
        base: The statistic that is compared with.
        value: The other one less `base`, in the same unit.
        pairs: Pairs of values compared; 0 where each sample is a single value.
        interval: Of `value`; None if there are too few units for one.
    """

    base: float
    value: float
    pairs: int = 0
    interval: Interval | None = None

    @property
    def relative(self) -> float:
        """The difference over the base, as a share; NaN over nothing."""
        return self.value / self.base if self.base else math.nan

    @property
    def direction(self) -> str:
        """Higher or lower, if the interval leaves out zero; same if nothing differs; unclear; nothing without one."""
        if self.interval is None:
            return ""
        if self.value == self.interval.low == self.interval.high == 0:
            return "same"
        if self.interval.low <= 0 <= self.interval.high:
            return "unclear"
        return "higher" if self.interval.low > 0 else "lower"


def statistic(name: str, values: Floats, weights: Floats) -> Floats:
    """A statistic of weighted rows.

    Args:
        name: mean, ratio (the sum of all columns but the last over the sum of the last), or a percentile such as p50
            or p95: the smallest value that this share of the weight does not exceed.
        values: Rows by columns; one column but for ratio.
        weights: Samples by rows: how often each row is in each sample.

    Returns:
        The statistic of each sample; NaN for a mean or ratio without weight.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        if name == "ratio":
            ratio: Floats = (weights @ values[:, :-1].sum(axis=1)) / (weights @ values[:, -1])
            return ratio
        if name == "mean":
            mean: Floats = (weights @ values[:, 0]) / weights.sum(axis=1)
            return mean
    order = np.argsort(values[:, 0], kind="stable")
    reached = np.cumsum(weights[:, order], axis=1)
    # Sums of whole numbers are exact; the share's product is not.
    place = (reached >= (_share(name) * reached[:, -1:]) - 1e-9).argmax(axis=1)
    percentile: Floats = values[order, 0][place]
    return percentile


def value_of(name: str, values: Floats | Sequence[float]) -> float:
    """A statistic of unweighted values: rows by columns, or a sequence for one column."""
    rows = np.asarray(values, dtype=np.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    return float(statistic(name, rows, np.ones((1, len(rows))))[0])


def enough(name: str, units: int, rows: int) -> bool:
    """The rule for when an interval is given: enough units, and for a percentile one value beyond it.

    Args:
        name: The statistic.
        units: Pairs, or clusters of them, to draw from.
        rows: Values of each sample.
    """
    beyond = rows * (1 - _share(name)) if name.startswith("p") else rows
    return units >= FEWEST_UNITS and beyond >= 1 - 1e-9


def interval(name: str, base: Floats, other: Floats, clusters: NDArray[np.int64] | None = None) -> Interval | None:
    """The 95% bootstrap interval of statistic(other) - statistic(base), rows of both being pairs.

    Percentiles of the differences of `RESAMPLES` samples, drawn with a fixed seed; widened as for Student's t for few
    units (Hesterberg's expanded percentiles).

    Args:
        name: The statistic.
        base: The pairs' values in the one run, rows by columns.
        other: Those in the other run, in the same order.
        clusters: The cluster of each pair, from 0; None draws the pairs themselves.

    Returns:
        The interval; None if there is not `enough` for one.
    """
    units = int(clusters.max()) + 1 if clusters is not None and len(clusters) else len(base)

    def differences(random: np.random.Generator, samples: int) -> Floats:
        weights = _draw(random, samples, units)
        weights = weights if clusters is None else weights[:, clusters]
        return statistic(name, other, weights) - statistic(name, base, weights)

    if not enough(name, units, len(base)):
        return None
    return _interval(units, differences, width=max(len(base), units))


def unpaired_interval(name: str, base: Floats, other: Floats) -> Interval | None:
    """As `interval`, of two groups of any sizes that are no pairs: each is drawn by itself."""

    def differences(random: np.random.Generator, samples: int) -> Floats:
        ones = statistic(name, base, _draw(random, samples, len(base)))
        return statistic(name, other, _draw(random, samples, len(other))) - ones

    units = min(len(base), len(other))
    return _interval(units, differences, width=max(len(base), len(other))) if enough(name, units, units) else None


def paired_difference(
    name: str, base: Floats, other: Floats, clusters: NDArray[np.int64] | None = None
) -> Difference | None:
    """The difference of a statistic over pairs, with its interval.

    Args:
        name: The statistic.
        base: The pairs' values in the one run, rows by columns. A pair with a NaN in either run is left out.
        other: Those in the other run, in the same order.
        clusters: A number for the cluster of each pair; None if the pairs are independent.

    Returns:
        The difference; None if no pair is left.
    """
    whole = np.isfinite(base).all(axis=1) & np.isfinite(other).all(axis=1)
    if not whole.any():
        return None
    base, other = base[whole], other[whole]
    if clusters is not None:
        clusters = np.unique(clusters[whole], return_inverse=True)[1].astype(np.int64)
    first, second = value_of(name, base), value_of(name, other)
    return Difference(first, second - first, len(base), interval(name, base, other, clusters))


def replicate_interval(values: Sequence[float], least: float = -math.inf) -> Interval | None:
    """The 95% interval of a figure by its values in bootstrap samples that were drawn elsewhere: replays of drawn jobs.

    Student's quantile times the samples' standard deviation around their mean, for samples too few to have percentiles.

    Args:
        values: The figure in each sample.
        least: What it can never be below.

    Returns:
        The interval; None below `FEWEST_UNITS` samples.
    """
    if len(values) < FEWEST_UNITS:
        return None
    mean, beside = float(np.mean(values)), _beside(values)
    return Interval(max(mean - beside, least), mean + beside, len(values))


def replicate_difference(base: Sequence[float], other: Sequence[float]) -> Difference:
    """How far a value of one sample is from a value of another that has nothing in common with it.

    Args:
        base: Replicates of a figure, as of `replicate_interval`.
        other: Those of the same figure under another condition.

    Returns:
        The difference of the means. Its 95% interval is that of two single values, one of each: half-widths of
        independent samples add as their squares do. It does not shrink with more replicates.
    """
    mean = float(np.mean(base))
    value, units = float(np.mean(other)) - mean, min(len(base), len(other))
    if units < FEWEST_UNITS:
        return Difference(mean, value)
    beside = math.hypot(_beside(base), _beside(other))
    return Difference(mean, value, interval=Interval(value - beside, value + beside, units))


def _beside(values: Sequence[float]) -> float:
    """Half the width of a sample's 95% interval: Student's quantile times the standard deviation."""
    return _student(len(values) - 1) * float(np.std(values, ddof=1))


def expanded_tail(units: int) -> float:
    """The share of bootstrap samples to leave out on each side: few units give as wide an interval as t does."""
    return NormalDist().cdf(-math.sqrt(units / (units - 1)) * _student(units - 1))


def _student(freedom: int) -> float:
    """Student's quantile by its expansion in 1 / freedom: right to 0.3% from 7 degrees on."""
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _share(percentile: str) -> float:
    return int(percentile[1:]) / 100


def _interval(units: int, differences: Callable[[np.random.Generator, int], Floats], *, width: int) -> Interval | None:
    """The interval of differences, which are drawn some samples at a time: each sample takes `width` weights."""
    random = np.random.default_rng(SEED)
    samples = RESAMPLES if units < MANY_UNITS else RESAMPLES_OF_MANY
    chunk = max(1, _CELLS // width)
    found = np.concatenate([differences(random, min(chunk, samples - start)) for start in range(0, samples, chunk)])
    found = found[np.isfinite(found)]
    if not len(found):
        return None
    tail = expanded_tail(units)
    low, high = np.quantile(found, [tail, 1 - tail])
    return Interval(float(low), float(high), units)


def _draw(random: np.random.Generator, samples: int, units: int) -> Floats:
    """How often each unit is in each sample of `units` draws."""
    drawn = random.integers(0, units, (samples, units)) + np.arange(samples)[:, None] * units
    counts = np.bincount(drawn.ravel(), minlength=samples * units)
    return counts.reshape(samples, units).astype(np.float64)
