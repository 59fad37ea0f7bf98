"""An exponential average of each tool's gaps, made wrong by a given spread."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from kvtrace.lab.replay.policies.base import Prefetch, Turn
from kvtrace.lab.tool_times import ToolTimes


class ByTool(Prefetch):
    """Expects the average of the tool's gaps seen so far; `prefetch_seconds` for a tool that was never seen.

    `prefetch_spread` is the sigma of a log-normal factor on each estimate, drawn with `prefetch_seed`.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._times = ToolTimes({}, float(options.get("seconds", 0.5)))
        self._spread = float(options.get("spread", 0.0))
        self._random = random.Random(int(options.get("seed", 0)))

    def gap_s(self, turn: Turn) -> float | None:
        """Return the tool's average, times an error."""
        return self._times.estimate(turn.tool) * self._random.lognormvariate(0.0, self._spread)

    def saw(self, turn: Turn, gap_s: float) -> None:
        """Update the tool's average."""
        self._times.saw(turn.tool, gap_s)
