"""Admissions and preemptions that pins forced."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, by_engine, count, rows_of, total, worst_of
from kvtrace.queries.trace import Trace

_HOLDERS = {"waiting": "waiting requests held"}
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
            forced = [count(refused, "refused admission")] if refused else []
            forced += [count(preempted, "preemption")] if preempted else []
            text = (
                f"{where}Blocks that {_HOLDERS.get(cause, f'pins of cause {cause} held')}, though no running request "
                f"used them, would have sufficed for {' and '.join(forced)} of {count(requests, 'request')}."
            )
            worst = worst_of(own, "forced_alone")
            yield Finding("pins", text, refused + preempted, Basis.inferred, "pin-forced", len(own), _REMEDY, worst)


RULE = Rule(("pin-forced",), find)
