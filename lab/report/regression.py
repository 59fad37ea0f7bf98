"""Step time against tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kvtrace.lab.report.parts import Part, table
from kvtrace.lab.results import Result
from kvtrace.reports.document import Paragraph


def regression(results: Sequence[Result]) -> Iterator[Part]:
    """A least-squares line through all steps of the cells of one capacity, model and block size."""
    rows = list(_lines(results))
    if not rows:
        return
    reading = (
        "A line through wall time and scheduled tokens of all steps of the cells of one capacity. It extrapolates "
        "to step times without tokens; r2 says how far to trust it."
    )
    below = (
        "A step without tokens takes no negative time: there, a line does not fit. A token of a long prefill "
        "attends to more context and costs more; the query cost-model fits that, too."
    )
    lines = table(["model", "kv_tokens", "cells", "steps", "ms a step", "us a token", "r2"], rows)
    warned = [Paragraph([below])] if any(row[4] < 0 for row in rows) else []
    yield "Step time against tokens, by capacity", [Paragraph([reading], "hint"), lines, *warned]


def _lines(results: Sequence[Result]) -> Iterator[list[Any]]:
    pooled: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for result in results:
        if result.steps is not None:
            pooled.setdefault((result.cell.model, result.cell.kv_tokens), []).append(result.steps)
    for (model, capacity), sums in sorted(pooled.items()):
        n, x, y, xx, xy, yy = (sum(column) for column in zip(*sums, strict=True))
        spread_x, spread_y, together = n * xx - x * x, n * yy - y * y, n * xy - x * y
        if n < 3 or spread_x <= 0:
            continue
        slope = together / spread_x
        r2 = together**2 / (spread_x * spread_y) if spread_y > 0 else None
        yield [Path(model).name, capacity, len(sums), int(n), (y - slope * x) / n, slope * 1e3, r2]
