"""What a finding is, and a rule that finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from kvtrace.queries.trace import Trace


class Basis(StrEnum):
    """How a finding's figures are known."""

    recorded = "recorded"
    derived = "derived"
    inferred = "inferred"


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
    """

    rule: str
    text: str
    cost_ms: float
    basis: Basis
    evidence: str
    rows: int
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The finding as JSON takes it."""
        return asdict(self)


@dataclass(frozen=True)
class Rule:
    """A rule: the canned queries it asks, and the function that turns their rows into findings."""

    queries: tuple[str, ...]
    find: Callable[[Trace], Iterable[Finding]]


def tokens(number: float) -> str:
    """A count of tokens for a sentence."""
    return f"{number:,.0f} tokens"


def duration(ms: float) -> str:
    """A duration for a sentence: three digits and a unit."""
    if ms >= 60_000:
        return f"{ms / 60_000:.1f} min"
    return f"{ms / 1000:.3g} s" if ms >= 1000 else f"{ms:.3g} ms"


def percent(share: float) -> str:
    """A share of 0 to 1 for a sentence."""
    return f"{share * 100:.0f}%" if share in (0, 1) or 0.1 <= share <= 0.9 else f"{share * 100:.1f}%"


def count(number: float, singular: str, plural: str = "") -> str:
    """A counted noun: `1 step`, `2 steps`."""
    return f"{number:,.0f} {singular if number == 1 else plural or singular + 's'}"
