"""Statistics of weighted samples, and bootstrap intervals of the difference between two paired ones.

A bootstrap sample is a row of weights: how often each pair was drawn. So one call computes a statistic of thousands of
samples at once. With clusters (the turns of a session) whole clusters are drawn, for their members are no independent
observations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
"""Below that many pairs (or clusters) no interval is given: it would say more than the data."""

_CELLS = 4_000_000
"""Weights held at once."""

_QUANTILES = {"p50": 0.5, "p95": 0.95}


@dataclass(frozen=True)
class Interval:
    """A bootstrap interval, and how many pairs or clusters were drawn from."""

    low: float
    high: float
    units: int


def statistic(name: str, values: Floats, weights: Floats) -> Floats:
    """A statistic of weighted rows.

    Args:
        name: mean, p50, p95 or ratio (the sum of all columns but the last over the sum of the last).
        values: Rows by columns; one column but for ratio.
        weights: Samples by rows: how often each row is in each sample.

    Returns:
        The statistic of each sample; NaN for one without weight.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        if name == "ratio":
            found: Floats = (weights @ values[:, :-1].sum(axis=1)) / (weights @ values[:, -1])
            return found
        if name == "mean":
            mean: Floats = (weights @ values[:, 0]) / weights.sum(axis=1)
            return mean
    order = np.argsort(values[:, 0], kind="stable")
    reached = np.cumsum(weights[:, order], axis=1)
    # The smallest value that this share of the weight does not exceed; sums of whole numbers are exact.
    place = (reached >= (_QUANTILES[name] * reached[:, -1:]) - 1e-9).argmax(axis=1)
    quantile: Floats = values[order, 0][place]
    return quantile


def interval(name: str, base: Floats, other: Floats, clusters: NDArray[np.int64] | None = None) -> Interval | None:
    """The 95% bootstrap interval of statistic(other) - statistic(base), rows of both being pairs.

    Percentiles of the differences of `RESAMPLES` samples, drawn with a fixed seed; widened as for Student's t for few
    units (Hesterberg's expanded percentiles). None if there are too few units, or for a 95th percentile so few that its
    upper end is not in the data.

    Args:
        name: The statistic.
        base: The pairs' values in the one run, rows by columns.
        other: Those in the other run, in the same order.
        clusters: The cluster of each pair, from 0; None draws the pairs themselves.
    """
    units = int(clusters.max()) + 1 if clusters is not None and len(clusters) else len(base)

    def differences(random: np.random.Generator, samples: int) -> Floats:
        weights = _draw(random, samples, units)
        weights = weights if clusters is None else weights[:, clusters]
        return statistic(name, other, weights) - statistic(name, base, weights)

    return _interval(name, units, len(base), differences, width=max(len(base), units))


def unpaired_interval(name: str, base: Floats, other: Floats) -> Interval | None:
    """As `interval`, of two groups of any sizes that are no pairs: each is drawn by itself."""

    def differences(random: np.random.Generator, samples: int) -> Floats:
        ones = statistic(name, base, _draw(random, samples, len(base)))
        return statistic(name, other, _draw(random, samples, len(other))) - ones

    units = min(len(base), len(other))
    return _interval(name, units, units, differences, width=max(len(base), len(other)))


def _interval(
    name: str, units: int, rows: int, differences: Callable[[np.random.Generator, int], Floats], *, width: int
) -> Interval | None:
    """The interval of differences, which are drawn some samples at a time: each sample takes `width` weights."""
    if units < FEWEST_UNITS or rows * (1 - _QUANTILES.get(name, 0.5)) < 1:
        return None
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
    """Return how often each unit is in each sample of `units` draws."""
    drawn = random.integers(0, units, (samples, units)) + np.arange(samples)[:, None] * units
    counts = np.bincount(drawn.ravel(), minlength=samples * units)
    return counts.reshape(samples, units).astype(np.float64)


def expanded_tail(units: int) -> float:
    """The share of bootstrap samples to leave out on each side: few units give as wide an interval as t does."""
    normal = NormalDist()
    z = normal.inv_cdf(0.5 + LEVEL / 2)
    freedom = units - 1
    # Student's quantile by its expansion in 1 / freedom: right to 0.3% from 7 degrees on.
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return normal.cdf(-math.sqrt(units / freedom) * t)
