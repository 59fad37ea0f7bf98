"""Tokens that preemptions discarded."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, by_engine, count, duration, rows_of, tokens, total
from kvtrace.queries.trace import Trace


def find(trace: Trace) -> Iterator[Finding]:
    """One finding for each engine that preempted."""
    for where, rows in by_engine(rows_of(trace, "preemptions")):
        discarded, again = tokens(total(rows, "discarded_tokens")), tokens(total(rows, "recomputed_tokens"))
        requests, waited = len({row["request"] for row in rows}), total(rows, "wait_ms")
        text = (
            f"{where}{count(len(rows), 'preemption')} of {count(requests, 'request')} discarded the KV of {discarded}; "
            f"{again} were computed again, and the requests waited {duration(waited)} to go on."
        )
        remedy = "More KV blocks or a smaller --max-num-seqs. `preemption-ledger` has each one's price."
        yield Finding("preemption", text, waited, Basis.recorded, "preemptions", len(rows), remedy)


RULE = Rule(("preemptions",), find)
