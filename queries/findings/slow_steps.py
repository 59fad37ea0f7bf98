"""Steps that took much longer than their tokens explain."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, count, duration, percent
from kvtrace.queries.trace import Trace

_TIMES = 3.0
"""A step stands out when it takes this many times what its tokens explain."""
_LEAST_SHARE = 0.02


def find(trace: Trace) -> Iterator[Finding]:
    """One finding for each engine that lost more than a fiftieth of its time in such steps."""
    residuals = trace.query("step-residuals")
    for engine, rows in residuals.groupby("engine_id"):
        slow = rows[rows.interval_ms > _TIMES * rows.fitted_ms.clip(lower=0.001)]
        lost = float(slow.residual_ms.sum())
        share = lost / float(rows.interval_ms.sum())
        if not len(slow) or share < _LEAST_SHARE:
            continue
        worst = slow.loc[slow.residual_ms.idxmax()]
        where = f"Engine {engine}: " if residuals.engine_id.nunique() > 1 else ""
        text = (
            f"{where}{count(len(slow), 'step')} took over {_TIMES:.0f} times as long as their tokens explain, "
            f"{duration(lost)} in all ({percent(share)} of the steps' time). The worst is step {int(worst.step):,}: "
            f"{duration(worst.interval_ms)} for {count(worst.scheduled_tokens, 'token')}."
        )
        remedy = "Look at those steps in the page; a first step includes compilation, a stall may be the host's."
        yield Finding("slow_steps", text, lost, Basis.inferred, "step-residuals", len(slow), remedy)


RULE = Rule(("step-residuals",), find)
