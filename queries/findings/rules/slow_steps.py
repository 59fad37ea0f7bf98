"""Steps that took much longer than their tokens explain."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, Thing, by_engine, count, percent, rows_of, total
from kvtrace.queries.text import duration
from kvtrace.queries.trace import Trace

_TIMES = 3.0
"""A step stands out when it takes this many times what its tokens explain."""
_LEAST_SHARE = 0.02


def find(trace: Trace) -> Iterator[Finding]:
    """One finding for each engine that lost more than a fiftieth of its time in such steps."""
    for where, rows in by_engine(rows_of(trace, "step-residuals")):
        fitted = [row for row in rows if row["fitted_ms"] is not None]
        slow = [row for row in fitted if row["own_ms"] > _TIMES * max(row["fitted_ms"], 0.001)]
        lost, whole = total(slow, "residual_ms"), total(rows, "own_ms")
        if not slow or lost / whole < _LEAST_SHARE:
            continue
        longest = max(slow, key=lambda row: row["residual_ms"])
        scheduled = count(longest["scheduled_tokens"], "token")
        text = (
            f"{where}{count(len(slow), 'step')} took over {_TIMES:.0f} times as long as their tokens explain, "
            f"{duration(lost)} in all ({percent(lost / whole)} of the steps' time). The worst is step "
            f"{longest['step']:,}: {duration(longest['own_ms'])} for {scheduled}."
        )
        remedy = "Look at those steps in the page; a first step includes compilation, a stall may be the host's."
        worst = Thing("step", longest["step"], longest["engine_id"])
        yield Finding("slow_steps", text, lost, Basis.inferred, "step-residuals", len(slow), remedy, worst)


RULE = Rule(("step-residuals",), find)
