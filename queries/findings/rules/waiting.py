"""Why requests waited in the scheduler's queue, one finding for each reason."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, by_engine, count, percent, rows_of
from kvtrace.queries.text import duration
from kvtrace.queries.trace import Trace

_REASONS = {
    "kv_insufficient": (
        "because their KV blocks could not be allocated",
        "More KV blocks (--gpu-memory-utilization, --kv-cache-dtype fp8): `kvtrace advise` predicts what they give.",
    ),
    "max_num_seqs": (
        "because as many requests ran as --max-num-seqs allows",
        "A larger --max-num-seqs, as far as KV memory allows.",
    ),
    "token_budget": (
        "because the step's token budget was used up",
        "A larger --max-num-batched-tokens. Steps get longer, so watch the time between tokens.",
    ),
    "prefill_interval": (
        "because prefills run in every so many steps only",
        "A smaller --prefill-schedule-interval, or 1. Decoding is interrupted more often.",
    ),
    "max_loras": (
        "because the step had as many LoRA adapters as --max-loras allows",
        "A larger --max-loras, as far as memory allows.",
    ),
    "remote_kv": (
        "because the first one's KV was being loaded by the connector",
        "`kvtrace query transfers` or `handover-stages` tells what the loads wait for.",
    ),
    "connector_deferred": (
        "because the connector could not tell yet what it has of the first one's prompt",
        "`kvtrace query tier-hits` and table `connector_lookup` tell what was asked for meanwhile.",
    ),
    "grammar": (
        "because the grammar of the first one's structured output was being compiled",
        "Fewer different grammars, or another structured output backend.",
    ),
    "preempted": (
        "because the step preempted a running request, after which vLLM admits nobody",
        "More KV blocks, or a smaller --max-num-seqs, so that running requests do not evict each other.",
    ),
}
_LEAST_SHARE = 0.01
"""Share of the wall time below which waiting is not worth a sentence."""


def find(trace: Trace) -> Iterator[Finding]:
    """One finding for each engine and reason that held requests back for more than a hundredth of its time."""
    for where, rows in by_engine(rows_of(trace, "admission-limits")):
        for row in rows:
            if row["admission_limit"] not in _REASONS or (row["wall_share"] or 0) < _LEAST_SHARE:
                continue
            why, remedy = _REASONS[row["admission_limit"]]
            text = (
                f"{where}In {count(row['steps'], 'step')} ({duration(row['wall_ms'])}, {percent(row['wall_share'])} of "
                f"the time) requests waited {why}; {row['mean_waiting'] or 0:.1f} waited on average."
            )
            if row["mean_need_blocks"] is not None and row["mean_free_blocks"] is not None:
                needed, free = row["mean_need_blocks"], row["mean_free_blocks"]
                text += f" The first in the queue needed {needed:.0f} blocks on average, and {free:.0f} were free."
            yield Finding("waiting", text, row["waited_ms"], Basis.inferred, "admission-limits", 1, remedy)


RULE = Rule(("admission-limits",), find)
