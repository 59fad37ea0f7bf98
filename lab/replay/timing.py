"""Predicts how long a step takes: a fit of a recording's own steps by what they computed, judged on held-out steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from kvtrace.errors import KvtraceError
from kvtrace.lab.replay.recording import StepTime

_FEWEST_STEPS = 20
_HELD_OUT_RUN = 10
"""Steps are held out in runs of so many, every third run, so that the noise of neighbours does not leak."""


class Work(NamedTuple):
    """Work of a step: counts of requests and tokens, and token contexts (a token behind n others adds n + 1)."""

    decode_requests: int
    prefill_tokens: int
    decode_context: int
    prefill_context: int


class Residual(NamedTuple):
    """How well the fit predicts held-out steps of one kind. Shares are of the measured time."""

    kind: str
    steps: int
    median_error: float
    total_error: float


@dataclass
class TimeModel:
    """Step times, ns. Coefficients: per step, decoding request, prefill token, decode context and prefill context.

    Attributes:
        decode: For steps without prefill.
        mixed: For steps with prefill.
        overhead_ns: From a step's results to the next step's start, while there is work.
        residuals: On steps that the fit did not see.
        stalls: Share of the measured time that outliers took beyond what the model says. Replays leave it out.
    """

    decode: list[float]
    mixed: list[float]
    overhead_ns: int
    residuals: list[Residual]
    stalls: float = 0.0

    def step_ns(self, work: Work) -> int:
        """Predicted time from a step's start to its results."""
        coefficients = self.mixed if work.prefill_tokens else self.decode
        value = coefficients[0]
        for coefficient, amount in zip(coefficients[1:], work, strict=True):
            value += coefficient * amount
        return max(int(value), 1000)

    def to_json(self) -> dict[str, Any]:
        """The model as JSON."""
        return {**asdict(self), "residuals": [each._asdict() for each in self.residuals]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TimeModel:
        """The model that `to_json` wrote."""
        return cls(**{**value, "residuals": [Residual(**each) for each in value["residuals"]]})


def fit(steps: Sequence[StepTime]) -> TimeModel:
    """Fit a recording's steps.

    Raises:
        KvtraceError: It has too few steps.
    """
    rows, spent, gaps = [], [], []
    before_update = before_end = 0
    for step in steps:
        if step.update_ns is None or step.end_ns is None:
            continue
        amounts = step.decode_requests, step.prefill_tokens, step.decode_context, step.prefill_context
        if amounts[0] + amounts[1] > 0:
            rows.append(amounts)
            spent.append(step.update_ns - max(step.start_ns, before_update))
            if before_end and step.start_ns > before_end:
                gaps.append(step.start_ns - before_update)
        before_update, before_end = step.update_ns, step.end_ns
    if len(rows) < _FEWEST_STEPS:
        raise KvtraceError(f"{len(rows)} steps are too few to fit step times on; {_FEWEST_STEPS} are needed", 2)
    work, time = np.array(rows, dtype=float), np.array(spent, dtype=float)
    held_out = (np.arange(len(time)) // _HELD_OUT_RUN) % 3 == 2
    prefills = work[:, 1] > 0
    if held_out.all() or not held_out.any():
        held_out[:] = False
    residuals, fitted = [], []
    predicted = np.zeros(len(time))
    for kind, chosen in (("decode", ~prefills), ("with prefill", prefills)):
        seen, unseen = chosen & ~held_out, chosen & held_out
        trained, _ = _coefficients(work[seen], time[seen], work[~held_out], time[~held_out])
        residuals.append(_residual(kind, work[unseen], time[unseen], trained))
        coefficients, limit = _coefficients(work[chosen], time[chosen], work, time)
        fitted.append([float(each) for each in coefficients])
        of_kind = np.column_stack([np.ones(int(chosen.sum())), work[chosen]]) @ coefficients
        predicted[chosen] = np.where(time[chosen] - of_kind > limit, of_kind, time[chosen])
    return TimeModel(
        decode=fitted[0],
        mixed=fitted[1],
        overhead_ns=int(np.median(gaps)) if gaps else 0,
        residuals=[each for each in residuals if each.steps],
        stalls=float(1 - predicted.sum() / time.sum()),
    )


def _coefficients(work: Any, time: Any, all_work: Any, all_time: Any) -> tuple[Any, float]:
    """Non-negative coefficients, and the error from which on a step is an outlier and is left out of the fit.

    Steps of all kinds are used where one kind has too few.
    """
    if len(time) < _FEWEST_STEPS:
        work, time = all_work, all_time
    design = np.column_stack([np.ones(len(time)), work])
    kept, limit = np.ones(len(time), dtype=bool), float("inf")
    used = np.flatnonzero(design.any(axis=0))
    found = np.zeros(design.shape[1])
    for _ in range(12):
        # relative weights: a short step's error matters as much to its requests as a long one's
        weight = 1 / np.sqrt(np.maximum(time[kept], 1))
        solved = np.linalg.lstsq(design[kept][:, used] * weight[:, None], time[kept] * weight, rcond=None)[0]
        if (solved < 0).any():
            used = np.delete(used, int(np.argmin(solved * design[:, used].mean(axis=0))))
            continue
        found[:] = 0
        found[used] = solved
        error = np.abs(time - design @ found)
        limit = max(6 * 1.4826 * float(np.median(error)), 1.0)
        inside = error <= limit
        if (inside == kept).all():
            break
        kept = inside
    predicted = (design @ found)[kept].sum()
    return found * (time[kept].sum() / predicted if predicted > 0 else 1), limit


def _residual(kind: str, work: Any, time: Any, coefficients: Any) -> Residual:
    if not len(time):
        return Residual(kind, 0, 0.0, 0.0)
    predicted = np.column_stack([np.ones(len(time)), work]) @ coefficients
    median = float(np.median(np.abs(predicted - time) / np.maximum(time, 1)))
    return Residual(kind, len(time), median, float(predicted.sum() / time.sum() - 1))
