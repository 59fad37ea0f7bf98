"""Time that requests spend in the API process before the engine has them."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, duration, percent, rows_of, total
from kvtrace.queries.trace import Trace

_LEAST_SHARE = 0.05


def find(trace: Trace) -> Iterator[Finding]:
    """One finding where the API process takes more than a twentieth of the time to first token."""
    rows = rows_of(trace, "request-latency")
    known = [row for row in rows if row["frontend_ms"] is not None and row["ttft_ms"] is not None]
    before, whole = total(known, "frontend_ms"), total(known, "ttft_ms")
    if not whole or before / whole < _LEAST_SHARE:
        return
    text = (
        f"{percent(before / whole)} of the time to first token passed before the engine had the request: "
        f"{duration(before / len(known))} a request on average, {duration(max(row['frontend_ms'] for row in known))} "
        "at most."
    )
    remedy = "The API process is busy or starting: look at its CPU, tokenization, --api-server-count."
    yield Finding("api_process", text, before, Basis.recorded, "request-latency", len(known), remedy)


RULE = Rule(("request-latency",), find)
