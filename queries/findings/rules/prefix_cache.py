"""How much the prefix cache supplied, and what a cache that loses nothing would add."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, by_engine, count, percent, rows_of, total
from kvtrace.queries.text import duration
from kvtrace.queries.trace import Trace

_QUERY = "prefix-miss-summary"
_SMALL = 0.02
"""Share of the prompt tokens below which losses are not worth a change."""

_MORE = "More KV blocks, an offload tier, pins over tool calls: `kvtrace advise` predicts what they give."


def find(trace: Trace) -> Iterator[Finding]:
    """One finding for each engine that looked prefixes up."""
    # after a preemption a prompt is looked up once more
    asked = (row for row in rows_of(trace, _QUERY) if not row["resumed"] and row["verdict"] != "caching_off")
    for where, rows in by_engine(asked):
        queried, hits = total(rows, "queried_tokens"), total(rows, "hit_tokens")
        lost, missed = total(rows, "avoidable_tokens"), total(rows, "recomputed_tokens")
        if not queried:
            continue
        never, unknown = (
            total((row for row in rows if row["verdict"] == verdict), "recomputed_tokens")
            for verdict in ("never_stored", "unknown")
        )
        cost_ms = total(rows, "avoidable_ms")
        text = f"{where}{percent(hits / queried)} of the prompt tokens came from the prefix cache."
        if missed:
            also = f"; of {percent(unknown / missed)} that is not known" if unknown else ""
            text += f" {percent(never / missed)} of the rest was never stored before{also}."
        begun = [row for row in rows if row["verdict"] == "part_of_block"]
        if (shared := total(begun, "known_tokens")) / queried >= _SMALL:
            text += (
                f" {count(total(begun, 'lookups'), 'request')} began as an earlier one, with at least {shared:,.0f} "
                "tokens in all, but less than a block: vLLM finds whole blocks."
            )
        if lost / queried < _SMALL:
            text += " The cache lost almost nothing that was asked for again: KV memory is not what limits hits."
            yield Finding("prefix_cache", text, cost_ms, Basis.derived, _QUERY, len(rows))
            continue
        text += (
            f" A cache that loses nothing and uses all it has would give {percent((hits + lost) / queried)}: the "
            f"difference cost {duration(cost_ms)} of prefill."
        )
        evicted = total((row for row in rows if row["verdict"].startswith("evicted")), "avoidable_tokens")
        remedy = _MORE if evicted else ""
        yield Finding("prefix_cache", text, cost_ms, Basis.derived, _QUERY, len(rows), remedy)


RULE = Rule((_QUERY,), find)
