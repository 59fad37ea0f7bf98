"""Gaps of the recording or of what was read of it, which weaken every other finding."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.facts import run_facts
from kvtrace.queries.findings.rule import Basis, Finding, Rule, count, rows_of, total
from kvtrace.queries.trace import Trace


def find(trace: Trace) -> Iterator[Finding]:
    """One finding if records were dropped, one if damaged files were left out."""
    dropped = total(rows_of(trace, "run-summary"), "dropped_records")
    if dropped:
        text = f"{count(dropped, 'record')} are missing: the recording stopped early, so every figure is of a part."
        yield Finding(
            "incomplete", text, float("inf"), Basis.recorded, "run-summary", 1, "Record with more disk space."
        )
    damaged = sum(line.startswith("left out: ") for line in str(run_facts(trace).get("warnings") or "").splitlines())
    if damaged:
        text = f"{count(damaged, 'damaged part')} of the recording left out: every figure is of what was whole."
        remedy = "Table run, key warnings, names the files."
        yield Finding("incomplete", text, float("inf"), Basis.recorded, "run-summary", 1, remedy)


RULE = Rule(("run-summary",), find)
