"""How much the prefix cache supplied, and what a cache that loses nothing would add."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, duration, percent
from kvtrace.queries.trace import Trace

_SMALL = 0.02
"""Share of the prompt tokens below which losses are not worth a change."""


def find(trace: Trace) -> Iterator[Finding]:
    """One finding for each engine that looked prefixes up."""
    every = trace.query("prefix-miss-summary")
    asked = ~every.resumed.astype(bool) & (every.verdict != "caching_off")
    misses = every[asked]  # after a preemption a prompt is looked up once more
    for engine, rows in misses.groupby("engine_id"):
        queried, hits = float(rows.queried_tokens.sum()), float(rows.hit_tokens.sum())
        lost, missed = float(rows.avoidable_tokens.sum()), float(rows.recomputed_tokens.sum())
        if not queried:
            continue
        never = float(rows[rows.verdict == "never_stored"].recomputed_tokens.sum())
        cost_ms = float(rows.avoidable_ms.sum())
        where = f"Engine {engine}: " if misses.engine_id.nunique() > 1 else ""
        text = f"{where}{percent(hits / queried)} of the prompt tokens came from the prefix cache."
        if missed:
            text += f" {percent(never / missed)} of the rest was never stored before."
        if lost / queried < _SMALL:
            text += " The cache lost almost nothing that was asked for again: KV memory is not what limits hits."
            yield Finding("prefix_cache", text, cost_ms, Basis.derived, "prefix-miss-summary", len(rows))
            continue
        text += (
            f" A cache that loses nothing would give {percent((hits + lost) / queried)}: what was evicted before its "
            f"next use cost {duration(cost_ms)} of prefill."
        )
        remedy = "More KV blocks, an offload tier, or pins over tool calls: `kvtrace reuse` gives hits by cache size."
        yield Finding("prefix_cache", text, cost_ms, Basis.derived, "prefix-miss-summary", len(rows), remedy)


RULE = Rule(("prefix-miss-summary",), find)
