"""The numbers at the top of a report, each with its unit in words. They are of query `run-summary`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kvtrace.queries.text import duration, rounded
from kvtrace.reports.document import Card

Row = Mapping[str, Any]


def tiles(row: Row) -> Iterator[Card]:
    """Make the tiles of a run's summary; a number that the trace does not tell has none.

    Args:
        row: The query's row.
    """
    for column, write, words in _TILES:
        if row[column] is not None:
            text = words(row) if callable(words) else words
            yield Card(write(row[column]), text, f"{column} of query run-summary")


def _share(value: float) -> str:
    return f"{100 * value:.1f}%"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _seconds(value: float) -> str:
    return duration(1000 * value)


def _and_late(what: str, column: str) -> Callable[[Row], str]:
    """A median's words, with the time that 95 of 100 stay within."""
    return lambda row: f"{what}, median; p95 {duration(row[column])}" if row[column] is not None else f"{what}, median"


def _finished(row: Row) -> str:
    return "requests, all finished" if row["finished_requests"] == row["requests"] else (
        f"requests, {row['finished_requests']:,} finished"
    )  # fmt: skip


def _peak(row: Row) -> str:
    mean = row["mean_used_share"]
    return "of KV blocks in use at most" + ("" if mean is None else f"; {_share(mean)} on average")


def _again(row: Row) -> str:
    return f"preemptions; {row['recomputed_tokens'] or 0:,} tokens computed again"


_TILES: tuple[tuple[str, Callable[[Any], str], str | Callable[[Row], str]], ...] = (
    ("hit_share", _share, "of prompt tokens from cache"),
    ("requests", _count, _finished),
    ("ttft_p50_ms", duration, _and_late("to first token (TTFT)", "ttft_p95_ms")),
    ("tpot_p50_ms", duration, _and_late("per output token (TPOT)", "tpot_p95_ms")),
    ("prompt_tokens", _count, "prompt tokens"),
    ("output_tokens", _count, "output tokens"),
    ("output_tokens_per_s", rounded, "output tokens per second"),
    ("span_s", _seconds, "from the first arrival to the last end"),
    ("step_p50_ms", duration, lambda row: f"{_and_late('per step', 'step_p95_ms')(row)}; {row['steps']:,} steps"),
    ("max_used_share", _share, _peak),
    ("evictions", _count, "cached blocks evicted"),
    ("preemptions", _count, _again),
)
"""A column, how its value is written, and what stands below it."""
