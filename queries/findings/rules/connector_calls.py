"""Time that a worker was in its KV connector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvtrace.queries.findings.rule import Basis, Finding, Rule, by_engine, percent, rows_of, total
from kvtrace.queries.text import duration
from kvtrace.queries.trace import Trace

_LEAST_SHARE = 0.1
_UNUSED = "A tier that nothing is loaded from only costs: try a larger one, or none."
_USED = (
    "A connector that copies beside the steps returns sooner; larger blocks, or chunks of them, make fewer transfers."
)


def find(trace: Trace) -> Iterator[Finding]:
    """One finding for each engine whose worker was in its connector for a tenth of the steps' time or more.

    Waiting for the step's own work does not count: the GPU is busy meanwhile.
    """
    for where, rows in by_engine(rows_of(trace, "connector-calls")):
        share, spent = total(rows, "share"), total(rows, "total_ms")
        waited = total(rows, "waited_ms")
        own = 1 - waited / spent if spent else 0.0
        if share * own < _LEAST_SHARE:
            continue
        longest = rows[0]
        text = (
            f"{where}The worker spent {duration(spent)} in calls into {longest['connector']}, {percent(share)} of the "
            f"steps' time; {duration(longest['total_ms'])} of it in {longest['call']}. It launches nothing meanwhile."
        )
        if waited:
            text += f" For {duration(waited)} of it the GPU was at the step's own work."
        moved = _transfers(trace, longest["engine_id"])
        stored = total(moved, "bytes")
        unused = stored > 0 and {row["direction"] for row in moved} == {"store"}
        if unused:
            text += f" It stored {stored / 1e9:,.0f} GB, and loaded nothing."
        remedy = _UNUSED if unused else _USED
        cost = own * total(rows, "batch_ms")
        yield Finding("connector_calls", text, cost, Basis.recorded, "connector-calls", len(rows), remedy)


def _transfers(trace: Trace, engine_id: object) -> list[dict[str, Any]]:
    """List what an engine's connector moved; nothing where the trace does not tell."""
    if trace.missing("transfers"):
        return []
    return [row for row in rows_of(trace, "transfers") if row["engine_id"] == engine_id]


RULE = Rule(("connector-calls",), find)
