"""A finding, and a rule that finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import isfinite
from typing import Any

from kvtrace.queries.trace import Trace


class Basis(StrEnum):
    """How a finding's figures are known."""

    recorded = "recorded"
    derived = "derived"
    inferred = "inferred"


@dataclass(frozen=True)
class Thing:
    """A step, by its number, or a request, by its key."""

    kind: str
    number: int
    engine_id: int | None

    def __str__(self) -> str:
        """Its name as `kvtrace explain` takes it."""
        return f"{self.kind}:{self.number}"


@dataclass(frozen=True)
class Finding:
    """One thing that cost the run something.

    Args:
        rule: Name of the rule's module.
        text: One to three sentences with the size of it.
        cost_ms: Requests' time that it cost, in ms, as far as the trace tells; findings are ranked by it.
        basis: How the figures are known.
        evidence: The canned query whose rows show it.
        rows: Rows of that query that it rests on.
        remedy: What to try; empty if nothing helps, or nothing has to.
        worst: The request or step that it cost most, where those rows name any.
    """

    rule: str
    text: str
    cost_ms: float
    basis: Basis
    evidence: str
    rows: int
    remedy: str = ""
    worst: Thing | None = None

    def as_dict(self) -> dict[str, Any]:
        """The finding as JSON takes it, which knows no infinity."""
        return asdict(self) | {"cost_ms": self.cost_ms if isfinite(self.cost_ms) else None}


@dataclass(frozen=True)
class Rule:
    """A rule: the canned queries it asks, and the function that turns their rows into findings."""

    queries: tuple[str, ...]
    find: Callable[[Trace], Iterable[Finding]]


def tokens(number: float) -> str:
    """A count of tokens for a sentence."""
    return f"{number:,.0f} tokens"


def percent(share: float) -> str:
    """A share of 0 to 1 for a sentence."""
    return f"{share * 100:.0f}%" if share in (0, 1) or 0.1 <= share <= 0.9 else f"{share * 100:.1f}%"


def count(number: float, singular: str, plural: str = "") -> str:
    """A counted noun: `1 step`, `2 steps`."""
    return f"{number:,.0f} {singular if number == 1 else plural or singular + 's'}"


def rows_of(trace: Trace, query: str) -> list[dict[str, Any]]:
    """The rows of a canned query, NULL as None."""
    rows: list[dict[str, Any]] = trace.query(query, format="arrow").to_pylist()
    return rows


def by_engine(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Rows of each engine, with what a sentence about it begins with: nothing if there is one engine."""
    engines: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        engines.setdefault(row["engine_id"], []).append(row)
    for engine, own in engines.items():
        yield (f"Engine {engine}: " if len(engines) > 1 else ""), own


def worst_of(rows: Iterable[dict[str, Any]], column: str) -> Thing:
    """The request of the row with the most in a column."""
    row = max(rows, key=lambda row: row[column] or 0)
    return Thing("request", row["request"], row["engine_id"])


def total(rows: Iterable[dict[str, Any]], column: str) -> float:
    """The sum of a column; NULL counts as nothing."""
    return float(sum(row[column] or 0 for row in rows))
