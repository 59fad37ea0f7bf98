"""An exponential average of all gaps, whatever the tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvtrace.lab.replay.policies.base import Prefetch, Turn
from kvtrace.lab.tool_times import ToolTimes


class Average(Prefetch):
    """Expects the average of the gaps seen so far; `prefetch_seconds` before the first."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._times = ToolTimes({}, float(options.get("seconds", 0.5)))

    def gap_s(self, turn: Turn) -> float | None:
        """Return the average."""
        return self._times.estimate("")

    def saw(self, turn: Turn, gap_s: float) -> None:
        """Update the average."""
        self._times.saw("", gap_s)
