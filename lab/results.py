"""A cell's results, in figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kvtrace.lab.cell import PREDICTED
from kvtrace.lab.matrix import Cell
from kvtrace.lab.sweep import RUN
from kvtrace.queries.statistics import replicate_interval, value_of
from kvtrace.queries.trace import TRACE_NAME

MADE, MADES = "made", ("measured", "predicted")
"""The axis that tells predicted cells from measured ones, where a sweep has predicted ones."""
FIRST_PASSES = 20
"""Forward passes of a phase whose tokens are kept."""
TENTHS = 10
"""Parts of a phase's time that figures over time have."""


class Spread(NamedTuple):
    """A predicted figure over draws of step times: its mean, and between what two runs of the same would lie (95%)."""

    mean: float
    low: float
    high: float


@dataclass
class Phase:
    """One workload on the engine.

    Attributes:
        workload: Its description, with `name` and `sha256`.
        position: Which of the cell's phases, from 0.
        again: How often the cell ran the same workload before: 0 is cold, 1 is warm.
        figures: Throughputs, latencies, shares; None what cannot be told.
        jct_s: Completion time of each job that was completed, by session, s.
        ttft_ms: Mean time to the first token of each such job, ms.
        turns_ms: Mean latency of the first turn, the second and so on, ms: of jobs that completed all of them, up to
            the turn that half of the jobs completed.
        first_passes_tokens: Tokens of each of the first `FIRST_PASSES` forward passes, or of all.
        kv_cache_percent: Share of the KV cache's blocks that were in use, %; the mean over each of `TENTHS` parts of
            the time, None before its first step.
        running: Running requests, likewise.
        shape: How latencies grow with the turns, inferred by the query turn-growth; None where it cannot be told.
        draws: Of a predicted cell, figures in each replay with other step times; empty without any.
    """

    workload: dict[str, Any]
    position: int
    figures: dict[str, float | None]
    jct_s: dict[str, float]
    ttft_ms: dict[str, float]
    turns_ms: list[float] = field(default_factory=list)
    shape: str | None = None
    draws: dict[str, list[float]] = field(default_factory=dict)
    again: int = 0
    first_passes_tokens: list[int] = field(default_factory=list)
    kv_cache_percent: list[float | None] = field(default_factory=list)
    running: list[float | None] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The workload's name, and whether the cell ran it before: phases with the same label did the same."""
        name = str(self.workload["name"])
        return name if not self.again else f"{name}, again" if self.again == 1 else f"{name}, time {self.again + 1}"

    def spread(self, name: str) -> Spread | None:
        """A figure over the draws; None without any."""
        values = self.draws.get(name, [])
        found = replicate_interval(values, least=0.0)
        return Spread(value_of("mean", values), found.low, found.high) if found else None


@dataclass
class Result:
    """A cell that ran, or failed."""

    cell: Cell
    place: Path
    status: str
    error: str | None
    seconds: float
    facts: dict[str, Any]
    phases: list[Phase] = field(default_factory=list)
    engine: dict[str, Any] = field(default_factory=dict)
    steps: tuple[float, ...] | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The folder's name, the same of the measured cell and the predicted one."""
        return self.place.name.removesuffix(PREDICTED)

    @property
    def made(self) -> str:
        """`measured`, or `predicted` by a replay."""
        return "predicted" if self.place.name.endswith(PREDICTED) else "measured"

    @property
    def trace(self) -> Path | None:
        """The trace, if there is one."""
        path = self.place / RUN / TRACE_NAME
        return path if path.exists() else None
