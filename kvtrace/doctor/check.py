"""A check's outcome."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """Outcome of a check."""

    ok = "ok"
    note = "note"  # a recording lacks something
    problem = "problem"  # nothing would be recorded


@dataclass(frozen=True)
class Check:
    """A check and its outcome.

    Attributes:
        name: What was checked.
        state: The outcome.
        text: A sentence for people.
        details: Further sentences.
        facts: The same for programs.
    """

    name: str
    state: State
    text: str
    details: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
