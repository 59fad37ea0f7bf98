"""Why requests waited in the scheduler's queue, one finding for each reason."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.queries.findings.rule import Basis, Finding, Rule, count, duration, percent
from kvtrace.queries.trace import Trace

_REASONS = {
    "kv_insufficient": (
        "because their KV blocks could not be allocated",
        "More KV blocks (--gpu-memory-utilization, --kv-cache-dtype fp8), fewer or shorter requests at once.",
    ),
    "max_num_seqs": (
        "because as many requests ran as --max-num-seqs allows",
        "A larger --max-num-seqs, as far as KV memory allows.",
    ),
    "token_budget": (
        "because the step's token budget was used up",
        "A larger --max-num-batched-tokens. Steps get longer, so watch the time between tokens.",
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
    limits = trace.query("admission-limits")
    for row in limits.itertuples():
        if row.admission_limit not in _REASONS or not row.wall_share or row.wall_share < _LEAST_SHARE:
            continue
        why, remedy = _REASONS[row.admission_limit]
        where = f"Engine {row.engine_id}: " if limits.engine_id.nunique() > 1 else ""
        text = (
            f"{where}In {count(row.steps, 'step')} ({duration(row.wall_ms)}, {percent(row.wall_share)} of the time) "
            f"requests waited {why}; {row.mean_waiting:.1f} waited on average."
        )
        if row.admission_limit == "kv_insufficient" and row.mean_need_blocks == row.mean_need_blocks:
            needed, free = row.mean_need_blocks, row.mean_free_blocks
            text += f" The first in the queue needed {needed:.0f} blocks on average, and {free:.0f} were free."
        cost_ms = row.wall_ms * row.mean_waiting
        yield Finding("waiting", text, cost_ms, Basis.inferred, "admission-limits", 1, remedy)


RULE = Rule(("admission-limits",), find)
