"""Admissions and preemptions that pins forced."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, by_engine, count, rows_of, total
from kvtrace.queries.trace import Trace

_REMEDY = "A shorter time to live, or pins that give way to waiting requests: `pinned-blocks` says what held them."


def find(trace: Trace) -> Iterator[Finding]:
    """One finding for each engine and cause whose blocks alone would have sufficed."""
    for where, rows in by_engine(rows_of(trace, "pin-forced")):
        for cause in sorted({row["cause"] for row in rows}):
            own = [row for row in rows if row["cause"] == cause and row["forced_alone"]]
            if not own:
                continue
            refused = total((row for row in own if row["kind"] == "refused"), "forced_alone")
            preempted = total((row for row in own if row["kind"] == "preempted"), "forced_alone")
            requests = len({row["request"] for row in own})
            text = (
                f"{where}Blocks held as {cause}, though no running request used them, would have sufficed for "
                f"{count(refused, 'refused admission')} and {count(preempted, 'preemption')} of "
                f"{count(requests, 'request')}."
            )
            yield Finding("pins", text, refused + preempted, Basis.inferred, "pin-forced", len(own), _REMEDY)


RULE = Rule(("pin-forced",), find)
