"""The numbers by which runs are compared: one declaration each, over the answer of a canned query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pandas as pd

Statistic = Literal["mean", "p50", "p95", "p99", "ratio", "value", "total"]
"""Reduction of a run's rows to its number.

mean, p50, p95 and p99 are over requests. ratio is over them, too: the sum of all columns but the last over that of the
last. value is the one of a row that says all (their mean, if several engines have one), total the sum of all rows.
"""

PER_REQUEST = ("mean", "p50", "p95", "p99", "ratio")


@dataclass(frozen=True)
class Metric:
    """A number of a run: where it comes from, its unit, and which way is better (None: neither)."""

    key: str
    """Its name in the condition of a gate."""

    name: str
    unit: str
    better: Literal["lower", "higher"] | None
    query: str
    columns: tuple[str, ...]
    statistic: Statistic
    meaning: str
    where: tuple[tuple[str, str], ...] = ()
    """Only the rows with these values."""

    over_span: bool = False
    """It is divided by the time from the first arrival to the last end, idle time included."""

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
        "output_throughput", "output throughput", "tokens/s", "higher", "run-summary", ("output_tokens_per_s",),
        "value", "Output tokens over the time from the first arrival to the last end.", over_span=True,
    ),
    Metric(
        "request_throughput", "request throughput", "requests/s", "higher", "run-summary", ("requests_per_s",), "value",
        "Requests that ended over the same time.", over_span=True,
    ),
    Metric(
        "ttft_mean", "TTFT, mean", "ms", "lower", "request-latency", ("ttft_ms",), "mean",
        "From arrival to the first token.",
    ),
    Metric("ttft_p50", "TTFT, p50", "ms", "lower", "request-latency", ("ttft_ms",), "p50", "Median of the same."),
    Metric(
        "ttft_p95", "TTFT, p95", "ms", "lower", "request-latency", ("ttft_ms",), "p95",
        "95th percentile of the same.",
    ),
    Metric(
        "ttft_p99", "TTFT, p99", "ms", "lower", "request-latency", ("ttft_ms",), "p99",
        "99th percentile of the same.",
    ),
    Metric(
        "tpot_p50", "inter-token time, p50", "ms/token", "lower", "request-latency", ("tpot_ms",), "p50",
        "Median over requests of a request's mean time between tokens.",
    ),
    Metric(
        "tpot_p95", "inter-token time, p95", "ms/token", "lower", "request-latency", ("tpot_ms",), "p95",
        "95th percentile over requests of the same.",
    ),
    Metric(
        "tpot_p99", "inter-token time, p99", "ms/token", "lower", "request-latency", ("tpot_ms",), "p99",
        "99th percentile over requests of the same.",
    ),
    Metric(
        "latency_mean", "request latency, mean", "ms", "lower", "request-latency", ("total_ms",), "mean",
        "From arrival to the end: the duration of a turn, where requests are turns.",
    ),
    Metric(
        "latency_p50", "request latency, p50", "ms", "lower", "request-latency", ("total_ms",), "p50",
        "Median of the same.",
    ),
    Metric(
        "latency_p95", "request latency, p95", "ms", "lower", "request-latency", ("total_ms",), "p95",
        "95th percentile of the same.",
    ),
    Metric(
        "latency_p99", "request latency, p99", "ms", "lower", "request-latency", ("total_ms",), "p99",
        "99th percentile of the same.",
    ),
    Metric(
        "queue_mean", "queue time, mean", "ms", "lower", "request-latency", ("queue_ms",), "mean",
        "From the scheduler's queue to the first admission.",
    ),
    Metric(
        "hit_rate", "prefix hit rate", "ratio", "higher", "prefix-hit-rate",
        ("local_hit_tokens", "external_hit_tokens", "queried_tokens"), "ratio",
        "Prompt tokens from the prefix cache or a connector over all prompt tokens; 0 with prefix caching off.",
    ),
    Metric(
        "preemptions", "preemptions a request", "", "lower", "request-latency", ("preemptions",), "mean",
        "Times a request was preempted, on average.",
    ),
    Metric(
        "evictions", "evictions", "blocks", "lower", "run-summary", ("evictions",), "value",
        "Blocks whose cached content was evicted.",
    ),
    Metric(
        "recomputed_tokens", "recomputed after preemption", "tokens", "lower", "run-summary", ("recomputed_tokens",),
        "value", "Tokens computed again after preemptions.",
    ),
    Metric(
        "avoidable_tokens", "avoidable recomputation", "tokens", "lower", "prefix-miss-summary", ("avoidable_tokens",),
        "total", "Tokens computed at admissions that a cache which lost nothing would have supplied.",
    ),
    Metric(
        "kv_mean", "KV utilisation, mean", "ratio", None, "run-summary", ("mean_used_share",), "value",
        "Share of the KV blocks in use, over the steps' time.",
    ),
    Metric(
        "kv_peak", "KV utilisation, peak", "ratio", None, "run-summary", ("max_used_share",), "value",
        "Largest share of the KV blocks in use after a step.",
    ),
    Metric(
        "step_p50", "step time, p50", "ms", "lower", "run-summary", ("step_p50_ms",), "value",
        "Median wall time of a step.",
    ),
    Metric(
        "step_p95", "step time, p95", "ms", "lower", "run-summary", ("step_p95_ms",), "value",
        "95th percentile of the same.",
    ),
    Metric(
        "step_per_token", "step time a token", "us/token", "lower", "step-regression", ("slope_us_per_token",), "value",
        "Wall time that a further token adds to a step (fitted over all steps).", (("composition", "all"),),
    ),
    Metric(
        "step_fixed", "step time without tokens", "ms", "lower", "step-regression", ("intercept_ms",), "value",
        "Wall time of a step at zero tokens (the same fit).", (("composition", "all"),),
    ),
)  # fmt: skip
