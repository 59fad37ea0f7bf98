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
from kvtrace.queries import Trace
from kvtrace.reports import fairness
from kvtrace.reports.bootstrap import Floats, Interval, interval, statistic
from kvtrace.reports.head import command_line
from kvtrace.reports.metrics import METRICS, Metric
from kvtrace.reports.pairing import Method, Pairing, pair

if TYPE_CHECKING:
    import pandas as pd

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Difference:
    """Difference of a run from the first in a metric: over its pairs, or between two runs' single values.

    `pairs` is 0 where the metric has one value a run; then there is no interval either.
    """

    value: float
    relative: float
    pairs: int
    interval: Interval | None

    def verdict(self, better: str | None) -> str:
        """better, worse, same or unclear, by the interval; higher or lower if neither is better; else nothing."""
        if self.interval is None:
            return ""
        if self.value == self.interval.low == self.interval.high == 0:
            return "same"
        if self.interval.low <= 0 <= self.interval.high:
            return "unclear"
        direction = "higher" if self.interval.low > 0 else "lower"
        return direction if better is None else "better" if direction == better else "worse"


@dataclass(frozen=True)
class Row:
    """A metric's value in each run (None: it cannot be had), and each later run's difference from the first."""

    metric: Metric
    values: tuple[float | None, ...]
    differences: tuple[Difference | None, ...]


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
            self.command = command_line(fairness.run_facts(trace).get("command")) or "-"
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
        values = rows.reindex(requests)[list(metric.columns)].to_numpy(dtype=np.float64, na_value=np.nan)
        if metric.statistic == "ratio":
            values[:, :-1] = np.nan_to_num(values[:, :-1])
        return values

    def value(self, metric: Metric) -> float | None:
        """A metric of this run; None if it cannot be had."""
        if metric.paired:
            values = self.sample(metric, self.keys)
            whole = values[np.isfinite(values).all(axis=1)] if values is not None else np.empty((0, 1))
            found = float(statistic(metric.statistic, whole, np.ones((1, len(whole))))[0]) if len(whole) else math.nan
        else:
            answer = self.answers.get(metric.query)
            column = None if answer is None else metric.rows(answer)[metric.columns[0]].dropna()
            if column is None or column.empty:
                return None
            found = float(column.sum() if metric.statistic == "total" else column.mean())
        return found if math.isfinite(found) else None


def compare(paths: Sequence[Path], method: Method | None = None) -> Comparison:
    """Compare runs with the first of them.

    Args:
        paths: Two or more traces.
        method: What to pair requests by; None takes the surest way that works.

    Raises:
        KvtraceError: fewer than two or too many traces, or one cannot be read.
    """
    if not 2 <= len(paths) <= len(LETTERS):
        raise KvtraceError(
            f"compare takes 2 to {len(LETTERS)} traces, got {len(paths)}: kvtrace compare A.duckdb B.duckdb"
        )
    runs = [_Run(path) for path in paths]
    base, others = runs[0], runs[1:]
    pairings = tuple(pair(base.requests, other.requests, method) for other in others)
    rows = tuple(
        Row(
            metric,
            tuple(run.value(metric) for run in runs),
            tuple(_difference(metric, base, other, pairing) for other, pairing in zip(others, pairings, strict=True)),
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
    return found


def _difference(metric: Metric, base: _Run, other: _Run, pairing: Pairing) -> Difference | None:
    if not metric.paired:
        first, second = base.value(metric), other.value(metric)
        return None if first is None or second is None else Difference(second - first, _over(second, first), 0, None)
    a, b = base.sample(metric, pairing.base.astype(float)), other.sample(metric, pairing.other.astype(float))
    if a is None or b is None:
        return None
    whole = np.isfinite(a).all(axis=1) & np.isfinite(b).all(axis=1)
    if not whole.any():
        return None
    a, b = a[whole], b[whole]
    clusters = None
    if pairing.clusters is not None:
        clusters = np.unique(pairing.clusters[whole], return_inverse=True)[1].astype(np.int64)
    once = np.ones((1, len(a)))
    first, second = (float(statistic(metric.statistic, values, once)[0]) for values in (a, b))
    return Difference(second - first, _over(second, first), len(a), interval(metric.statistic, a, b, clusters))


def _over(value: float, base: float) -> float:
    """The relative change; NaN from nothing."""
    return (value - base) / base if base else math.nan
