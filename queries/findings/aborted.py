"""Work on requests whose clients left."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, count, duration, tokens
from kvtrace.queries.trace import Trace


def find(trace: Trace) -> Iterator[Finding]:
    """One finding where requests were aborted after they had been computed on."""
    latency = trace.query("request-latency")
    gone = latency[(latency.finish_reason == "abort") & latency.prefill_ms.notna()]
    if not len(gone):
        return
    spent = float(gone.prefill_ms.sum() + gone.decode_ms.fillna(0).sum())
    text = (
        f"{count(len(gone), 'request')} ended in an abort after {duration(spent)} in the batch, with "
        f"{tokens(gone.output_tokens.fillna(0).sum())} generated for nobody."
    )
    remedy = "Clients that time out or disconnect: compare their time-out with the time to first token."
    yield Finding("aborted", text, spent, Basis.recorded, "request-latency", len(gone), remedy)


RULE = Rule(("request-latency",), find)
