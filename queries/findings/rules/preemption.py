"""Tokens that preemptions discarded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvtrace.queries.findings.rule import Basis, Finding, Rule, by_engine, count, rows_of, tokens, total, worst_of
from kvtrace.queries.text import duration
from kvtrace.queries.trace import Trace


def find(trace: Trace) -> Iterator[Finding]:
    """One finding for each engine that preempted."""
    for where, rows in by_engine(rows_of(trace, "preemptions")):
        requests, waited = len({row["request"] for row in rows}), total(rows, "wait_ms")
        text = (
            f"{where}{count(len(rows), 'preemption')} of {count(requests, 'request')} discarded "
            f"{_tokens(rows, 'discarded_tokens', 'the KV of ') or 'KV, the trace does not say how much'}"
        )
        if again := _tokens(rows, "recomputed_tokens"):
            text += f"; {again} were computed again"
        if any(row["wait_ms"] is not None for row in rows):
            text += f"{', and' if again else ';'} the requests waited {duration(waited)} to go on"
        text += "."
        worst = worst_of(rows, "wait_ms")
        remedy = "More KV blocks or a smaller --max-num-seqs. `preemption-ledger` has each one's price."
        yield Finding("preemption", text, waited, Basis.recorded, "preemptions", len(rows), remedy, worst)


def _tokens(rows: list[dict[str, Any]], column: str, before: str = "") -> str:
    """The sum of a column in words; nothing where the trace says it of no row."""
    known = any(row[column] is not None for row in rows)
    return before + tokens(total(rows, column)) if known else ""


RULE = Rule(("preemptions",), find)
