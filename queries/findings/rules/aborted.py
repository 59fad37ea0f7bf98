"""Work on requests whose clients left."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, count, rows_of, tokens, total, worst_of
from kvtrace.queries.text import duration
from kvtrace.queries.trace import Trace


def find(trace: Trace) -> Iterator[Finding]:
    """One finding where requests were aborted after they had been computed on."""
    rows = [row for row in rows_of(trace, "request-latency") if row["samples"] is None]  # each of an engine's once
    gone = [row for row in rows if row["finish_reason"] == "abort" and row["prefill_ms"] is not None]
    if not gone:
        return
    spent = total(gone, "prefill_ms") + total(gone, "decode_ms")
    text = (
        f"{count(len(gone), 'request')} ended in an abort after {duration(spent)} in the batch, with "
        f"{tokens(total(gone, 'output_tokens'))} generated for nobody."
    )
    worst = worst_of(gone, "total_ms")
    remedy = "Clients that time out or disconnect: compare their time-out with the time to first token."
    yield Finding("aborted", text, spent, Basis.recorded, "request-latency", len(gone), remedy, worst)


RULE = Rule(("request-latency",), find)
