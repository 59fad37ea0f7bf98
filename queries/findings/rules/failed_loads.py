"""Requests whose KV a connector could not load."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, by_engine, count, rows_of, total, worst_of
from kvtrace.queries.text import duration
from kvtrace.queries.trace import Trace

_REMEDY = (
    "The engine's log names the error; `kv_load_failure_policy: recompute` lets vLLM compute what it cannot load "
    "instead of ending the request."
)


def find(trace: Trace) -> Iterator[Finding]:
    """One finding for each engine with loads that failed."""
    for where, rows in by_engine(rows_of(trace, "failed-loads")):
        ended = [row for row in rows if row["outcome"] == "ended"]
        early = sum(not row["transfers"] for row in rows)
        loads = "The load" if len(rows) == 1 else "Loads"
        text = f"{where}{loads} of KV of {count(len({row['request'] for row in rows}), 'request')} failed"
        if early:
            text += ", before anything was transferred" if early == len(rows) else f", {early:,} before any transfer"
        spent = total(rows, "load_ms")
        text += f"; {'it' if len(rows) == 1 else 'they'} had waited {duration(spent)} for it."
        if ended:
            text += f" {count(len(ended), 'request')} ended with an error for that."
        yield Finding(
            "failed_loads", text, spent, Basis.recorded, "failed-loads", len(rows), _REMEDY, worst_of(rows, "load_ms")
        )


RULE = Rule(("failed-loads",), find)
