"""Confidence interval of a mean of paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000
_AT_ONCE = 100


class Interval(NamedTuple):
    """A mean and its 95% interval."""

    mean: float
    low: float
    high: float


def interval(differences: Sequence[float], seed: int = 0) -> Interval | None:
    """The mean of paired differences with its percentile-bootstrap 95% interval; None for fewer than two.

    Args:
        differences: One a pair.
        seed: Of the resampling: the same differences give the same interval.
    """
    if len(differences) < 2:
        return None
    values = np.asarray(differences, float)
    rng = np.random.default_rng(seed)
    chosen = (rng.integers(0, len(values), (_AT_ONCE, len(values))) for _ in range(RESAMPLES // _AT_ONCE))
    means = np.concatenate([values[rows].mean(axis=1) for rows in chosen])
    low, high = np.percentile(means, (2.5, 97.5))
    return Interval(float(values.mean()), float(low), float(high))
