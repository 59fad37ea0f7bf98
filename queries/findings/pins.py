"""Admissions and preemptions that pins forced."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, count
from kvtrace.queries.trace import Trace


def find(trace: Trace) -> Iterator[Finding]:
    """One finding for each engine and cause whose blocks alone would have sufficed."""
    forced = trace.query("pin-forced")
    for (engine, cause), rows in forced.groupby(["engine_id", "cause"]):
        alone = float(rows.forced_alone.sum())
        if not alone:
            continue
        refused = float(rows[rows.kind == "refused"].forced_alone.sum())
        preempted = float(rows[rows.kind == "preempted"].forced_alone.sum())
        where = f"Engine {engine}: " if forced.engine_id.nunique() > 1 else ""
        text = (
            f"{where}Blocks held as {cause}, though no running request used them, would have sufficed for "
            f"{count(refused, 'refused admission')} and {count(preempted, 'preemption')} of "
            f"{count(rows.request.nunique(), 'request')}."
        )
        remedy = (
            "A shorter time to live, or pins that give way to waiting requests: `pinned-blocks` says what held them."
        )
        yield Finding("pins", text, alone, Basis.inferred, "pin-forced", len(rows), remedy)


RULE = Rule(("pin-forced",), find)
