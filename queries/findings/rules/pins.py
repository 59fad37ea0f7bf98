"""Admissions and preemptions that pins forced."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, by_engine, count, rows_of, total, worst_of
from kvtrace.queries.text import duration
from kvtrace.queries.trace import Trace

_HOLDERS = {"waiting": "waiting requests held"}
_REMEDY = "A shorter time to live, or pins that give way to waiting requests: `pinned-blocks` says what held them."
_IN_ORDER = (
    "Turns in the order of their jobs, so that the turn that a pin is for does not wait behind others: `kvtrace replay "
    "--set order=jobs` predicts what that gives. Or a shorter time to live: `pinned-blocks` says what held the blocks."
)


def find(trace: Trace) -> Iterator[Finding]:
    """One finding for each engine and cause whose blocks alone would have sufficed."""
    policies = {
        row["engine_id"]: row["policy"]
        for row in trace.sql("SELECT engine_id, policy::VARCHAR AS policy FROM engine", format="arrow").to_pylist()
    }
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
            wall_ms = total(own, "forced_wall_ms")
            text = (
                f"{where}Blocks that {_HOLDERS.get(cause, f'pins of cause {cause} held')}, though no running request "
                f"used them, would have sufficed for {' and '.join(forced)} of {count(requests, 'request')}"
                f"{f', in steps that took {duration(wall_ms)}' if wall_ms else ''}."
            )
            cost_ms = total(own, "forced_waited_ms") + preempted  # what a preemption costs is another finding's
            as_they_come = policies.get(own[0]["engine_id"]) == "fcfs"
            remedy = _IN_ORDER if cause == "ttl" and as_they_come else _REMEDY
            worst = worst_of(own, "forced_alone")
            yield Finding("pins", text, cost_ms, Basis.inferred, "pin-forced", len(own), remedy, worst)


RULE = Rule(("pin-forced",), find)
