"""Gaps of the recording, which weaken every other finding."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, count, rows_of, total
from kvtrace.queries.trace import Trace


def find(trace: Trace) -> Iterator[Finding]:
    """One finding if records were dropped."""
    dropped = total(rows_of(trace, "run-summary"), "dropped_records")
    if dropped:
        text = f"{count(dropped, 'record')} are missing: the recording stopped early, so every figure is of a part."
        yield Finding(
            "incomplete", text, float("inf"), Basis.recorded, "run-summary", 1, "Record with more disk space."
        )


RULE = Rule(("run-summary",), find)
