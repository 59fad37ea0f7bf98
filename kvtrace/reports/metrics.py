"""The numbers by which runs are compared: one declaration each, over the answer of a canned query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pandas as pd

Statistic = Literal["mean", "p50", "p95", "ratio", "value", "total"]
"""Reduction of a run's rows to its number.

mean, p50 and p95 are over requests. ratio is over them, too: the sum of all columns but the last over that of the
last. value is the one of a row that says all (their mean, if several engines have one), total the sum of all rows.
"""

PER_REQUEST = ("mean", "p50", "p95", "ratio")


@dataclass(frozen=True)
class Metric:
    """A number of a run: where it comes from, its unit, and which way is better (None: neither)."""

    name: str
    unit: str
    better: Literal["lower", "higher"] | None
    query: str
    columns: tuple[str, ...]
    statistic: Statistic
    meaning: str
    where: tuple[tuple[str, str], ...] = ()
    """Only the rows with these values."""

    @property
    def paired(self) -> bool:
        """There is a value for every request, so requests of two runs can be paired."""
        return self.statistic in PER_REQUEST

    def rows(self, answer: pd.DataFrame) -> pd.DataFrame:
        """The rows of the query's answer that count."""
        for column, value in self.where:
            answer = answer[answer[column] == value]
        return answer


METRICS = (
    Metric(
        "output throughput", "tokens/s", "higher", "run-summary", ("output_tokens_per_s",), "value",
        "Output tokens over the time from the first arrival to the last end.",
    ),
    Metric(
        "request throughput", "requests/s", "higher", "run-summary", ("requests_per_s",), "value",
        "Requests that ended over the same time.",
    ),
    Metric("TTFT, mean", "ms", "lower", "request-latency", ("ttft_ms",), "mean", "From arrival to the first token."),
    Metric("TTFT, p50", "ms", "lower", "request-latency", ("ttft_ms",), "p50", "Median of the same."),
    Metric("TTFT, p95", "ms", "lower", "request-latency", ("ttft_ms",), "p95", "95th percentile of the same."),
    Metric(
        "inter-token time, p50", "ms/token", "lower", "request-latency", ("tpot_ms",), "p50",
        "Median over requests of a request's mean time between tokens.",
    ),
    Metric(
        "inter-token time, p95", "ms/token", "lower", "request-latency", ("tpot_ms",), "p95",
        "95th percentile over requests of the same.",
    ),
    Metric(
        "request latency, mean", "ms", "lower", "request-latency", ("total_ms",), "mean",
        "From arrival to the end: the duration of a turn, where requests are turns.",
    ),
    Metric("request latency, p50", "ms", "lower", "request-latency", ("total_ms",), "p50", "Median of the same."),
    Metric(
        "request latency, p95", "ms", "lower", "request-latency", ("total_ms",), "p95", "95th percentile of the same."
    ),
    Metric(
        "queue time, mean", "ms", "lower", "request-latency", ("queue_ms",), "mean",
        "From the scheduler's queue to the first admission.",
    ),
    Metric(
        "prefix hit rate", "ratio", "higher", "prefix-hit-rate",
        ("local_hit_tokens", "external_hit_tokens", "queried_tokens"), "ratio",
        "Prompt tokens from the prefix cache or a connector over all prompt tokens; 0 with prefix caching off.",
    ),
    Metric(
        "preemptions a request", "", "lower", "request-latency", ("preemptions",), "mean",
        "Times a request was preempted, on average.",
    ),
    Metric(
        "evictions", "blocks", "lower", "run-summary", ("evictions",), "value",
        "Blocks whose cached content was evicted.",
    ),
    Metric(
        "recomputed after preemption", "tokens", "lower", "run-summary", ("recomputed_tokens",), "value",
        "Tokens computed again after preemptions.",
    ),
    Metric(
        "avoidable recomputation", "tokens", "lower", "prefix-miss-summary", ("avoidable_tokens",), "total",
        "Tokens computed at admissions that a cache which lost nothing would have supplied.",
    ),
    Metric(
        "KV utilisation, mean", "ratio", None, "run-summary", ("mean_used_share",), "value",
        "Share of the KV blocks in use, over the steps' time.",
    ),
    Metric(
        "KV utilisation, peak", "ratio", None, "run-summary", ("max_used_share",), "value",
        "Largest share of the KV blocks in use after a step.",
    ),
    Metric(
        "step time, p50", "ms", "lower", "run-summary", ("step_p50_ms",), "value", "Median wall time of a step."
    ),
    Metric("step time, p95", "ms", "lower", "run-summary", ("step_p95_ms",), "value", "95th percentile of the same."),
    Metric(
        "step time a token", "us/token", "lower", "step-regression", ("slope_us_per_token",), "value",
        "Wall time that a further token adds to a step (fitted over all steps).", (("composition", "all"),),
    ),
    Metric(
        "step time without tokens", "ms", "lower", "step-regression", ("intercept_ms",), "value",
        "Wall time of a step at zero tokens (the same fit).", (("composition", "all"),),
    ),
)  # fmt: skip
