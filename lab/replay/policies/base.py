"""Interface of prefetch policies: when a session's KV goes to the tier, and when it comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Turn(NamedTuple):
    """A turn that has ended with a tool call, or any turn where the recording names no tools.

    Attributes:
        session: The job.
        tool: Its name; empty if the recording names none.
        ended_s: When, s of UNIX time.
        tokens: Tokens whose KV is in full blocks.
        true_gap_s: Recorded time until the session's next turn, s; None without one. Only an oracle may look.
    """

    session: str
    tool: str
    ended_s: float
    tokens: int
    true_gap_s: float | None


class Movement(NamedTuple):
    """Circumstances of bringing a turn's KV back now.

    Attributes:
        missing_tokens: Tokens in the tier whose KV has left the GPU.
        prefill_s: Time to compute these tokens again.
        load_s: Time to copy them, waiting copies before it included; a turn that waits for them is blocked so long.
        queue_s: The part of it that copies before it take. Turns that are here may wait for those behind it.
        pool_share: Share of the GPU's free blocks, which other sessions' cached KV may lie in, that they take.
        tier_share: Share of the tier's bytes in use.
    """

    missing_tokens: int
    prefill_s: float
    load_s: float
    queue_s: float
    pool_share: float
    tier_share: float


class Prefetch:
    """A policy. Subclasses override what they decide otherwise.

    Args:
        options: `prefetch_...` settings without the prefix: `seconds`, `spread`, `seed`, `lead_s`.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options

    def gap_s(self, turn: Turn) -> float | None:
        """Expected time until the session's next turn, s. None: its KV is not brought back before it comes."""
        raise NotImplementedError

    def saw(self, turn: Turn, gap_s: float) -> None:
        """Learn that the session's next turn came `gap_s` after this one ended."""

    def stores(self, turn: Turn) -> bool:
        """Return True if the turn's KV goes to the tier while the tool runs (with `tier_write=turn`)."""
        return True

    def score(self, turn: Turn, movement: Movement) -> float:
        """Worth of bringing the KV back now. Turns with higher scores go first, those without a positive one stay.

        By default: the seconds that the next turn is spared, less those that the sessions lose whose KV it displaces.
        Only bandwidth that nobody waits for is used: with copies before it, it stays.
        """
        if movement.queue_s > 0:
            return 0.0
        spared = min(movement.load_s, movement.prefill_s)
        return spared * (1 - movement.pool_share)
