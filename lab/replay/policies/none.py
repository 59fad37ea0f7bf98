"""No prefetching: a turn that comes back waits for its copy from the tier."""

from __future__ import annotations

from kvtrace.lab.replay.policies.base import Prefetch, Turn


class NoPrefetch(Prefetch):
    """Never brings KV back before the turn comes."""

    def gap_s(self, turn: Turn) -> float | None:
        """Return None."""
        return None
