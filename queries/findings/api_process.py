"""Time that requests spend in the API process before the engine has them."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, duration, percent
from kvtrace.queries.trace import Trace

_LEAST_SHARE = 0.05


def find(trace: Trace) -> Iterator[Finding]:
    """One finding where the API process takes more than a twentieth of the time to first token."""
    latency = trace.query("request-latency")
    known = latency[latency.frontend_ms.notna() & latency.ttft_ms.notna()]
    before, whole = float(known.frontend_ms.sum()), float(known.ttft_ms.sum())
    if not len(known) or not whole or before / whole < _LEAST_SHARE:
        return
    text = (
        f"{percent(before / whole)} of the time to first token passed before the engine had the request: "
        f"{duration(before / len(known))} a request on average, {duration(known.frontend_ms.max())} at most."
    )
    remedy = "The API process is busy or starting: look at its CPU, tokenization, --api-server-count."
    yield Finding("api_process", text, before, Basis.recorded, "request-latency", len(known), remedy)


RULE = Rule(("request-latency",), find)
