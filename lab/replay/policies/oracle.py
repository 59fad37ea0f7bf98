"""The recorded time of return: an upper bound for predictors."""

from __future__ import annotations

from kvtrace.lab.replay.policies.base import Prefetch, Turn


class Oracle(Prefetch):
    """Knows the recorded gap."""

    def gap_s(self, turn: Turn) -> float | None:
        """Return the recorded gap."""
        return turn.true_gap_s
