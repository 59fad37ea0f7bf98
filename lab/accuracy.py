"""Predicted cells beside the measured ones of the same settings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvtrace.lab.cell import PREDICTED
from kvtrace.lab.compare import groups
from kvtrace.lab.summary import Result
from kvtrace.queries.statistics import paired_difference


@dataclass(frozen=True)
class Beside:
    """A cell that was measured and predicted."""

    measured: Result
    predicted: Result

    @property
    def own_times(self) -> bool:
        """The prediction has its step times from the measured cell itself."""
        return bool(self.predicted.facts.get("predicted", {}).get("time_from") == self.measured.place.name)

    def values(self, figure: str) -> tuple[float | None, float | None]:
        """A figure of the first phase, measured and predicted."""
        one, other = (result.phases[0].figures.get(figure) for result in (self.measured, self.predicted))
        return one, other

    @property
    def within_draws(self) -> bool | None:
        """The measured mean job completion time is within the prediction's draws; None if it has none."""
        spread, (measured, _) = self.predicted.phases[0].spread("jct_s_mean"), self.values("jct_s_mean")
        return None if spread is None or measured is None else spread.low <= measured <= spread.high

    def error(self, figure: str) -> float:
        """The predicted figure less the measured one, as a share of that; NaN where one is missing."""
        one, other = self.values(figure)
        return other / one - 1 if one and other is not None else math.nan


def beside(results: Sequence[Result]) -> list[Beside]:
    """All cells that were both measured and predicted, and ended well both times."""
    done = {result.place.name: result for result in results if result.status == "ok" and result.phases}
    pairs = [
        Beside(result, done[f"{name}{PREDICTED}"]) for name, result in done.items() if f"{name}{PREDICTED}" in done
    ]
    return [pair for pair in pairs if not math.isnan(pair.error("jct_s_mean"))]


@dataclass(frozen=True)
class Order:
    """Pairs of cells that differ in the compared axis only, by mean job completion time.

    Attributes:
        pairs: All of them.
        right: Those that the prediction orders as measured.
        apart: Those whose measured difference has an interval over jobs that leaves out 0.
        apart_right: Those of `apart` that the prediction orders as measured.
    """

    pairs: int
    right: int
    apart: int
    apart_right: int


def order_of(pairs: Sequence[Beside], compare: str) -> Order:
    """How a prediction orders cells, against how they were measured."""
    by_cell = {pair.measured.place.name: pair for pair in pairs}
    kept: list[tuple[bool, bool]] = []
    for members in groups([pair.measured for pair in pairs], compare).values():
        for one, other in itertools.combinations(members, 2):
            if one.cell.repeat == other.cell.repeat:
                first, second = by_cell[one.place.name], by_cell[other.place.name]
                measured, predicted = (_mean(b) - _mean(a) for a, b in zip(_sides(first), _sides(second), strict=True))
                kept.append((measured * predicted > 0, _apart(one, other)))
    apart = [right for right, is_apart in kept if is_apart]
    return Order(len(kept), sum(right for right, _ in kept), len(apart), sum(apart))


def _sides(pair: Beside) -> tuple[Result, Result]:
    return pair.measured, pair.predicted


def _mean(result: Result) -> float:
    return float(result.phases[0].figures["jct_s_mean"] or 0.0)


def _apart(one: Result, other: Result) -> bool:
    first, second = one.phases[0].jct_s, other.phases[0].jct_s
    common = sorted(first.keys() & second.keys())
    rows = [np.array([[jobs[job]] for job in common]).reshape(-1, 1) for jobs in (first, second)]
    found = paired_difference("mean", *rows)
    return found is not None and found.direction in ("higher", "lower")
