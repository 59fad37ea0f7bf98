"""Speculation that costs more time than its accepted tokens save."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, by_engine, count, percent, rows_of, tokens
from kvtrace.queries.trace import Trace

_QUERY = "speculation"
_REMEDY = (
    "Fewer num_speculative_tokens, or none while many requests run (num_speculative_tokens_per_batch_size). "
    "The time without drafts is that of this run's own steps, or a fit: a run without speculation tells for sure."
)


def find(trace: Trace) -> Iterator[Finding]:
    """One finding for each engine whose drafts did not pay."""
    for where, rows in by_engine(rows_of(trace, _QUERY)):
        for row in rows:
            saved_ms, needed = row["saved_ms"], row["break_even_acceptance"]
            if saved_ms is None or saved_ms >= 0 or needed is None:
                continue
            text = (
                f"{where}Of {tokens(row['drafted_tokens'])} that speculation drafted, {percent(row['acceptance'])} "
                f"were accepted; {percent(needed)} would have had to be for it to pay. It cost {-saved_ms:,.0f} ms "
                f"more than it saved in {count(row['decode_steps'], 'step')}."
            )
            yield Finding("speculation", text, -saved_ms, Basis.derived, _QUERY, 1, _REMEDY)


RULE = Rule((_QUERY,), find)
