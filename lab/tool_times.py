"""Estimates of each tool's duration, from the calls seen so far."""

from __future__ import annotations

from collections.abc import Mapping

WEIGHT = 0.25
"""Weight of a new observation in the exponential moving average."""


class ToolTimes:
    """A running estimate of each tool's time, s: the first observation, then an exponentially weighted mean.

    Args:
        known: Estimates to begin with, by tool.
        unseen: The estimate for a tool that is not known and was never seen.
    """

    def __init__(self, known: Mapping[str, float], unseen: float) -> None:
        self._estimates = dict(known)
        self._unseen = unseen

    def estimate(self, tool: str) -> float:
        """The time a call of the tool is expected to take, s."""
        return self._estimates.get(tool, self._unseen)

    def saw(self, tool: str, seconds: float) -> None:
        """A call of the tool took so long."""
        before = self._estimates.get(tool)
        self._estimates[tool] = seconds if before is None else before + WEIGHT * (seconds - before)
