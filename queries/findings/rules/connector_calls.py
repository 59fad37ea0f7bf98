"""Time that a worker was in its KV connector."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, by_engine, percent, rows_of, total
from kvtrace.queries.text import duration
from kvtrace.queries.trace import Trace

_LEAST_SHARE = 0.1
_UNUSED = "A tier that nothing is loaded from only costs: try a larger one, or none."
_USED = (
    "A connector that copies beside the steps returns sooner; larger blocks, or chunks of them, make fewer transfers."
)


def find(trace: Trace) -> Iterator[Finding]:
    """One finding for each engine whose worker was in its connector for a tenth of the steps' time or more."""
    moved: dict[object, dict[str, float]] = {}
    for row in [] if trace.missing("transfers") else rows_of(trace, "transfers"):
        of_engine = moved.setdefault(row["engine_id"], {})
        of_engine[row["direction"]] = of_engine.get(row["direction"], 0.0) + (row["bytes"] or 0)
    for where, rows in by_engine(rows_of(trace, "connector-calls")):
        share, spent = total(rows, "share"), total(rows, "total_ms")
        if share < _LEAST_SHARE:
            continue
        longest = rows[0]
        text = (
            f"{where}The worker spent {duration(spent)} in calls into {longest['connector']}, {percent(share)} of the "
            f"steps' time; {duration(longest['total_ms'])} of it in {longest['call']}. It launches nothing meanwhile."
        )
        bytes_of = moved.get(longest["engine_id"], {})
        unused = "store" in bytes_of and "load" not in bytes_of
        if unused:
            text += f" It stored {bytes_of['store'] / 1e9:,.0f} GB, and loaded nothing."
        remedy = _UNUSED if unused else _USED
        cost = total(rows, "batch_ms")
        yield Finding("connector_calls", text, cost, Basis.recorded, "connector-calls", len(rows), remedy)


RULE = Rule(("connector-calls",), find)
