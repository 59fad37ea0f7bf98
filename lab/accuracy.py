"""Predicted cells beside the measured ones of the same settings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvtrace.lab.compare import groups
from kvtrace.lab.results import Phase, Result
from kvtrace.queries.statistics import paired_difference


@dataclass(frozen=True)
class Beside:
    """A phase of a cell that was measured and predicted. `position` is its number, from 0."""

    measured: Result
    predicted: Result
    position: int = 0

    @property
    def phases(self) -> tuple[Phase, Phase]:
        """The phase, measured and predicted."""
        return self.measured.phases[self.position], self.predicted.phases[self.position]

    @property
    def own_times(self) -> bool:
        """The prediction has its step times from the measured cell itself."""
        return bool(self.predicted.facts.get("predicted", {}).get("time_from") == self.measured.place.name)

    def values(self, figure: str) -> tuple[float | None, float | None]:
        """A figure, measured and predicted."""
        one, other = (phase.figures.get(figure) for phase in self.phases)
        return one, other

    @property
    def within_draws(self) -> bool | None:
        """The measured mean job completion time is within the prediction's draws; None if it has none."""
        spread, (measured, _) = self.phases[1].spread("jct_s_mean"), self.values("jct_s_mean")
        return None if spread is None or measured is None else spread.low <= measured <= spread.high

    def error(self, figure: str) -> float:
        """The predicted figure less the measured one, as a share of that; NaN where one is missing."""
        one, other = self.values(figure)
        return other / one - 1 if one and other is not None else math.nan


def beside(results: Sequence[Result]) -> list[Beside]:
    """All phases of cells that were both measured and predicted, and ended well both times."""
    done = [result for result in results if result.status == "ok" and result.phases]
    predicted: dict[str, Result] = {}
    for result in done:
        if result.made == "predicted":
            predicted.setdefault(result.name, result)
    pairs = [
        Beside(result, predicted[result.name], position)
        for result in done
        if result.made == "measured" and result.name in predicted
        for position in range(min(len(result.phases), len(predicted[result.name].phases)))
    ]
    return [pair for pair in pairs if not math.isnan(pair.error("jct_s_mean"))]


@dataclass(frozen=True)
class Order:
    """Pairs of a phase in cells that differ in the compared axis only, by mean job completion time.

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
    by_phase = {(pair.measured.name, pair.measured.cell.repeat, pair.position): pair for pair in pairs}
    cells = list({(pair.measured.name, pair.measured.cell.repeat): pair.measured for pair in pairs}.values())
    kept: list[tuple[bool, bool]] = []
    for members in groups(cells, compare).values():
        for one, other in itertools.combinations(members, 2):
            for position in range(len(one.phases)) if one.cell.repeat == other.cell.repeat else ():
                first, second = (by_phase.get((result.name, result.cell.repeat, position)) for result in (one, other))
                if first is None or second is None:
                    continue
                measured, predicted = (_mean(b) - _mean(a) for a, b in zip(first.phases, second.phases, strict=True))
                kept.append((measured * predicted > 0, _apart(first.phases[0], second.phases[0])))
    apart = [right for right, is_apart in kept if is_apart]
    return Order(len(kept), sum(right for right, _ in kept), len(apart), sum(apart))


def _mean(phase: Phase) -> float:
    return float(phase.figures["jct_s_mean"] or 0.0)


def _apart(one: Phase, other: Phase) -> bool:
    common = sorted(one.jct_s.keys() & other.jct_s.keys())
    rows = [np.array([[jobs[job]] for job in common]).reshape(-1, 1) for jobs in (one.jct_s, other.jct_s)]
    found = paired_difference("mean", *rows)
    return found is not None and found.direction in ("higher", "lower")
