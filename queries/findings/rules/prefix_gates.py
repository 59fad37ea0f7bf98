"""Hits that a KV cache group or a rule of vLLM's lookup cut, though the tokens were cached before."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, by_engine, percent, rows_of, tokens, total
from kvtrace.queries.trace import Trace

_QUERY = "prefix-gates"
_SMALL = 0.02
"""Share of the prompt tokens below which a rule's losses are not worth a change."""
_DENSER = (
    "`--prefix-cache-retention-interval` (vLLM 0.29 and later) keeps more of them, for blocks that others then lack."
)
_RULES = {
    "window_gap": ("A sliding window that was not in the cache where it was needed", _DENSER),
    "no_state": ("A state of Mamba or linear attention that was not in the cache where it was needed", _DENSER),
    "alignment": ("Hits that must be multiples of the largest block", "Blocks of one size for all KV cache groups."),
    "eagle_drop": (
        "The last block of a hit, dropped for the draft model,",
        "Smaller blocks, which lose fewer tokens; vLLM 0.33 drops none where there is no KV connector.",
    ),
}


def find(trace: Trace) -> Iterator[Finding]:
    """One finding for each rule and group of each engine that costs more than a little."""
    asked = [row for row in rows_of(trace, "prefix-miss-summary") if not row["resumed"]]
    for where, rows in by_engine(rows_of(trace, _QUERY)):
        queried = total((row for row in asked if row["engine_id"] == rows[0]["engine_id"]), "queried_tokens")
        for row in rows:
            lost = row["known_tokens"]
            if row["resumed"] or row["rule"] not in _RULES or not queried or lost / queried < _SMALL:
                continue
            what, remedy = _RULES[row["rule"]]
            text = (
                f"{where}{what} (KV cache group {row['kv_group']}) cost {tokens(lost)} of prefix hits that earlier "
                f"requests had computed: {percent(lost / queried)} of the prompt tokens."
            )
            cost_ms = (row["compute_ms"] or 0) * lost / row["lost_tokens"]
            yield Finding("prefix_gates", text, cost_ms, Basis.derived, _QUERY, 1, remedy)


RULE = Rule((_QUERY, "prefix-miss-summary"), find)
