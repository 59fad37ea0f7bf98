"""Time that requests spend in the API process before the engine has them and after it has ended them."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, percent, rows_of, total, worst_of
from kvtrace.queries.text import duration
from kvtrace.queries.trace import Trace

_LEAST_SHARE = 0.05
_BUSY = "look at its CPU, tokenization, --api-server-count."


def find(trace: Trace) -> Iterator[Finding]:
    """A finding for each side of the engine on which the API process takes more than a twentieth of the time."""
    rows = [row for row in rows_of(trace, "request-latency") if row["parent"] is None]  # each client's request once
    known = [row for row in rows if row["frontend_ms"] is not None and row["ttft_ms"] is not None]
    before, whole = total(known, "frontend_ms"), total(known, "ttft_ms")
    if whole and before / whole >= _LEAST_SHARE:
        text = (
            f"{percent(before / whole)} of the time to first token passed before the engine had the request: "
            f"{duration(before / len(known))} a request on average, "
            f"{duration(max(row['frontend_ms'] for row in known))} at most."
        )
        worst = worst_of(known, "frontend_ms")
        remedy = f"The API process is busy or starting: {_BUSY}"
        yield Finding("api_process", text, before, Basis.recorded, "request-latency", len(known), remedy, worst)

    known = [row for row in rows if row["output_ms"] is not None and row["total_ms"] is not None]
    after = total(known, "output_ms")
    whole = total(known, "total_ms") + after
    if whole and after / whole >= _LEAST_SHARE:
        text = (
            f"{percent(after / whole)} of the clients' time passed after the engine had ended the request: the API "
            f"process handed on the last output {duration(after / len(known))} later on average, "
            f"{duration(max(row['output_ms'] for row in known))} at most."
        )
        worst = worst_of(known, "output_ms")
        remedy = f"The API process, not the engine, is the bottleneck: {_BUSY}"
        yield Finding("api_process", text, after, Basis.derived, "request-latency", len(known), remedy, worst)


RULE = Rule(("request-latency",), find)
