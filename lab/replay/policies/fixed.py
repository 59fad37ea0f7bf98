"""A fixed time after each turn's end."""

from __future__ import annotations

from kvtrace.lab.replay.policies.base import Prefetch, Turn


class Fixed(Prefetch):
    """Expects every turn back after `prefetch_seconds`."""

    def gap_s(self, turn: Turn) -> float | None:
        """Return the fixed time."""
        return float(self.options.get("seconds", 0.5))
