"""Groups of one run's requests against each other: cold and warm prompts, shared and unique ones, phases."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.errors import KvtraceError
from kvtrace.queries import Trace
from kvtrace.queries.statistics import Interval, unpaired_interval, value_of

if TYPE_CHECKING:
    import pandas as pd

# By what requests are put into groups; the group that the others are compared with comes first in this order, phases
# in the order in which they began. A phase is named as in query prefix-phases.
_BY = {
    "warmth": ("warmth", ("cold", "warm_hit", "warm_miss", "off", "unknown")),
    "sharing": ("sharing", ("unique", "shared", "unknown")),
    "phase": (r"coalesce(regexp_replace(session, '[-_/:. ]*[0-9]+$', ''), 'no tag')", ()),
}

_METRICS = (
    # name, unit, statistic, columns
    ("prefix hit rate", "ratio", "ratio", ("hit_tokens", "prompt_tokens")),
    ("TTFT, mean", "ms", "mean", ("ttft_ms",)),
    ("TTFT, p50", "ms", "p50", ("ttft_ms",)),
    ("TTFT, p95", "ms", "p95", ("ttft_ms",)),
    ("prompt, mean", "tokens", "mean", ("prompt_tokens",)),
)


@dataclass(frozen=True)
class GroupRow:
    """A metric of a group beside the first group's, with the bootstrap 95% interval of the difference."""

    metric: str
    unit: str
    base_group: str
    group: str
    base_requests: int
    requests: int
    base: float
    value: float
    interval: Interval | None

    @property
    def difference(self) -> float:
        """The group's value less the first group's."""
        return self.value - self.base


def compare_groups(path: Path, by: str, skip_requests: int = 0) -> list[GroupRow]:
    """Compare groups of a run's requests.

    Args:
        path: The trace.
        by: warmth, sharing or phase.
        skip_requests: Leave out the first requests up to this number, e.g. the warm-up.

    Raises:
        KvtraceError: the trace cannot be read, or its requests make fewer than two groups.
    """
    expression, order = _BY[by]
    with Trace(path) as trace:
        frame = trace.sql(
            f"SELECT {expression} AS grp, hit_tokens, prompt_tokens, ttft_ns / 1e6 AS ttft_ms "
            f"FROM prompt_class WHERE place > {int(skip_requests)} ORDER BY place"
        )
    names = list(dict.fromkeys(frame.grp))
    if order:
        names.sort(key=order.index)
    if len(names) < 2:
        only = f"all are {names[0]}" if names else "there are none that generated"
        raise KvtraceError(f"{path}: nothing to compare by {by}: of the requests, {only}")
    groups = {name: frame[frame.grp == name] for name in names}
    return [_row(metric, names[0], groups[names[0]], name, groups[name]) for name in names[1:] for metric in _METRICS]


def _row(
    metric: tuple[str, str, str, tuple[str, ...]], base_name: str, base: pd.DataFrame, name: str, other: pd.DataFrame
) -> GroupRow:
    label, unit, how, columns = metric
    values = [group[list(columns)].to_numpy(dtype=np.float64) for group in (base, other)]
    first, second = (value_of(how, rows) for rows in values)
    found = unpaired_interval(how, *values)
    return GroupRow(label, unit, base_name, name, len(base), len(other), first, second, found)
