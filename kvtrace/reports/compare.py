"""Sets runs side by side: every metric of each run, and the difference of each run from the first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.errors import KvtraceError
from kvtrace.queries import Trace, facts
from kvtrace.queries.statistics import Difference, Floats, paired_difference, value_of
from kvtrace.reports import fairness
from kvtrace.reports.metrics import METRICS, Metric
from kvtrace.reports.pairing import Method, Pairing, pair

if TYPE_CHECKING:
    import pandas as pd

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Row:
    """A metric in all runs.

    Attributes:
        metric: The metric.
        values: Its value in each run; None where it cannot be had.
        differences: Of each later run from the first; None where either has no value or the difference says nothing.
        noise: The differences of the first run's repetitions from it.
    """

    metric: Metric
    values: tuple[float | None, ...]
    differences: tuple[Difference | None, ...]
    noise: tuple[float, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Runs side by side. The first of `names` is what the others are compared with."""

    names: tuple[str, ...]
    commands: tuple[str, ...]
    rows: tuple[Row, ...]
    pairings: tuple[Pairing, ...]
    settings: tuple[fairness.Setting, ...]
    warnings: tuple[str, ...]
    repeats: tuple[bool, ...]
    """For each later run: it has the first one's command and settings, so that its differences are noise."""

    idle: tuple[str | None, ...]
    """For each later run: how its idle time differs from the first one's; its rates are then not compared."""

    unequal_load: tuple[tuple[str, ...], ...]
    """For each later run: how its load differs from the first one's by more than a twentieth."""

    @property
    def letters(self) -> str:
        """A letter for each run."""
        return LETTERS[: len(self.names)]


class _Run:
    """A trace's answers, each asked once."""

    def __init__(self, path: Path) -> None:
        self.name = "/".join(path.resolve().parts[-2:])
        with Trace(path) as trace:
            self.settings = fairness.settings(trace)
            self.losses = list(fairness.losses(trace))
            self.activity = fairness.activity(trace)
            self.command = facts.command_line(facts.run_facts(trace)) or "-"
            self.answers: dict[str, pd.DataFrame] = {
                name: trace.query(name)
                for name in dict.fromkeys(metric.query for metric in METRICS)
                if not trace.missing(name)
            }
            self.requests = trace.query("request-latency").dropna(subset="engine_id").reset_index(drop=True)

    @cached_property
    def keys(self) -> Floats:
        """The requests that reached an engine, by key."""
        return self.requests.request.to_numpy(dtype=np.float64)

    def sample(self, metric: Metric, requests: Floats) -> Floats | None:
        """A metric's values for these requests, rows by columns; NaN where one has none."""
        answer = self.answers.get(metric.query)
        if answer is None:
            return None
        rows = metric.rows(answer).drop_duplicates("request").set_index("request")
        known = rows.reindex(requests)[list(metric.columns)]
        values = known.to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
        if metric.statistic == "ratio":
            values[:, :-1] = np.nan_to_num(values[:, :-1])
        return values

    def value(self, metric: Metric) -> float | None:
        """A metric of this run; None if it cannot be had."""
        if metric.paired:
            values = self.sample(metric, self.keys)
            whole = values[np.isfinite(values).all(axis=1)] if values is not None else np.empty((0, 1))
            found = value_of(metric.statistic, whole) if len(whole) else math.nan
        else:
            answer = self.answers.get(metric.query)
            column = None if answer is None else metric.rows(answer)[metric.columns[0]].dropna()
            if column is None or column.empty:
                return None
            found = float(column.sum() if metric.statistic == "total" else column.mean())
        return found if math.isfinite(found) else None


def compare(paths: Sequence[Path], method: Method | None = None, repetitions: Sequence[Path] = ()) -> Comparison:
    """Compare runs with the first of them.

    Args:
        paths: Two or more traces.
        method: How to pair requests; None takes the surest way that works.
        repetitions: Traces of the first one's setup recorded again: their differences from it are noise.

    Raises:
        KvtraceError: fewer than two or too many traces, one cannot be read, or a repetition has other settings.
    """
    if not 2 <= len(paths) <= len(LETTERS):
        raise KvtraceError(
            f"compare takes 2 to {len(LETTERS)} traces, got {len(paths)}: kvtrace compare A.duckdb B.duckdb"
        )
    runs = [_Run(path) for path in paths]
    base, others = runs[0], runs[1:]
    pairings = tuple(pair(base.requests, other.requests, method) for other in others)
    again = [_repetition(base, _Run(path)) for path in repetitions]
    again_pairings = [pair(base.requests, run.requests, method) for run in again]
    rows = tuple(
        Row(
            metric,
            tuple(run.value(metric) for run in runs),
            tuple(_difference(metric, base, other, pairing) for other, pairing in zip(others, pairings, strict=True)),
            tuple(
                found.value
                for run, pairing in zip(again, again_pairings, strict=True)
                if (found := _difference(metric, base, run, pairing)) is not None
            ),
        )
        for metric in METRICS
    )
    settings = tuple(fairness.differing([run.settings for run in runs]))
    return Comparison(
        names=tuple(run.name for run in runs),
        commands=tuple(run.command for run in runs),
        rows=tuple(row for row in rows if any(value is not None for value in row.values)),
        pairings=pairings,
        settings=settings,
        warnings=tuple(_warnings(runs, pairings, settings)),
        repeats=tuple((run.command, run.settings) == (base.command, base.settings) for run in others),
        idle=tuple(fairness.idle(base.activity, run.activity) for run in others),
        unequal_load=tuple(tuple(fairness.unequal_load(base.requests, run.requests)) for run in others),
    )


def _warnings(runs: Sequence[_Run], pairings: Sequence[Pairing], settings: Sequence[fairness.Setting]) -> list[str]:
    """Why the comparison may not be fair."""
    found = [
        f"Different {fairness.NAMES[setting.name]}: "
        + ", ".join(f"{letter} {value}" for letter, value in zip(LETTERS, setting.values, strict=False))
        for setting in settings
        if setting.unfair
    ]
    found += [f"{letter}: {loss}" for letter, run in zip(LETTERS, runs, strict=False) for loss in run.losses]
    for letter, run, pairing in zip(LETTERS[1:], runs[1:], pairings, strict=False):
        found += [f"A and {letter}: {text}" for text in fairness.work(runs[0].requests, run.requests, pairing)]
        if text := fairness.idle(runs[0].activity, run.activity):
            found.append(f"A and {letter}: {text}; throughputs are not compared")
    return found


def _repetition(base: _Run, run: _Run) -> _Run:
    if differing := fairness.differing([base.settings, run.settings]):
        names = ", ".join(setting.name for setting in differing)
        raise KvtraceError(f"{run.name} is no repetition of {base.name}: other {names}")
    return run


def _difference(metric: Metric, base: _Run, other: _Run, pairing: Pairing) -> Difference | None:
    if metric.over_span and fairness.idle(base.activity, other.activity):
        return None
    if not metric.paired:
        first, second = base.value(metric), other.value(metric)
        return None if first is None or second is None else Difference(first, second - first)
    values = (base.sample(metric, pairing.base.astype(float)), other.sample(metric, pairing.other.astype(float)))
    if values[0] is None or values[1] is None:
        return None
    return paired_difference(metric.statistic, values[0], values[1], pairing.clusters)


def verdict(found: Difference, better: str | None) -> str:
    """better, worse, same or unclear, by the interval; higher or lower if neither is better; else nothing."""
    if better is None or found.direction not in ("higher", "lower"):
        return found.direction
    return "better" if found.direction == better else "worse"
