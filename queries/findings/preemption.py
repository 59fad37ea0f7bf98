"""What preemptions threw away."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, count, duration, tokens
from kvtrace.queries.trace import Trace


def find(trace: Trace) -> Iterator[Finding]:
    """One finding for each engine that preempted."""
    preemptions = trace.query("preemptions")
    for engine, rows in preemptions.groupby("engine_id"):
        where = f"Engine {engine}: " if preemptions.engine_id.nunique() > 1 else ""
        waited = float(rows.wait_ms.sum())
        discarded, again = tokens(rows.discarded_tokens.sum()), tokens(rows.recomputed_tokens.sum())
        text = (
            f"{where}{count(len(rows), 'preemption')} of {count(rows.request.nunique(), 'request')} discarded the KV "
            f"of {discarded}; {again} were computed again, and the requests waited {duration(waited)} to go on."
        )
        remedy = "More KV blocks or a smaller --max-num-seqs. `preemption-ledger` has each one's price."
        yield Finding("preemption", text, waited, Basis.recorded, "preemptions", len(rows), remedy)


RULE = Rule(("preemptions",), find)
