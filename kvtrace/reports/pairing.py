"""Finds the requests of two runs that are the same request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

Method = Literal["session", "id", "order"]
METHODS: dict[Method, str] = {
    "session": "session and turn",
    "id": "the id the client knows",
    "order": "order of arrival",
}
"""Ways to tell that two requests are the same one, the surest first."""

_ENOUGH = 0.5
"""A method is taken if it pairs at least this share of the smaller run's requests."""


@dataclass(frozen=True)
class Pairing:
    """Pairs of requests: `base[i]` and `other[i]` are keys of table `request` in their traces.

    `clusters` numbers the session of each pair where sessions made the pairs, else None.
    """

    method: Method
    base: NDArray[np.int64]
    other: NDArray[np.int64]
    base_requests: int
    other_requests: int
    clusters: NDArray[np.int64] | None

    @property
    def description(self) -> str:
        """Say how many were paired, of how many, and by what."""
        drawn = "" if self.clusters is None else f" from {len(set(self.clusters.tolist()))} sessions"
        return (
            f"{len(self.base):,} pairs{drawn} by {METHODS[self.method]}, "
            f"of {self.base_requests:,} and {self.other_requests:,} requests"
        )


def pair(base: pd.DataFrame, other: pd.DataFrame, method: Method | None = None) -> Pairing:
    """Pair the requests of two runs.

    Args:
        base: The answer of query request-latency for the one run: rows in order of arrival.
        other: That for the other run.
        method: What to pair by; None takes the surest that pairs at least half of the smaller run's requests.
    """
    for candidate in [method] if method else METHODS:
        found = _pair(base, other, candidate)
        if (
            method
            or candidate == "order"
            or (len(found.base) and len(found.base) >= _ENOUGH * min(len(base), len(other)))
        ):
            return found
    raise AssertionError("pairing by order always succeeds")


def _pair(base: pd.DataFrame, other: pd.DataFrame, method: Method) -> Pairing:
    if method == "order":
        rows = np.arange(min(len(base), len(other)))
        return _pairing(method, base, other, rows, rows, None)
    columns = ["session", "turn"] if method == "session" else ["external_id"]
    joined = _keyed(base, columns).merge(_keyed(other, columns), on=[*columns, "repeat"], suffixes=("_base", "_other"))
    joined = joined.sort_values("row_base")
    clusters = None
    if method == "session":
        clusters = np.unique(joined.session.to_numpy(dtype=str), return_inverse=True)[1].astype(np.int64)
    return _pairing(method, base, other, joined.row_base.to_numpy(), joined.row_other.to_numpy(), clusters)


def _keyed(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The rows that have the key, each with its number among those of the same key."""
    keyed = frame[list(columns)].assign(row=np.arange(len(frame))).dropna()
    return keyed.assign(repeat=keyed.groupby(list(columns)).cumcount())


def _pairing(
    method: Method,
    base: pd.DataFrame,
    other: pd.DataFrame,
    base_rows: NDArray[np.int64],
    other_rows: NDArray[np.int64],
    clusters: NDArray[np.int64] | None,
) -> Pairing:
    return Pairing(
        method=method,
        base=base.request.to_numpy(dtype=np.int64)[base_rows],
        other=other.request.to_numpy(dtype=np.int64)[other_rows],
        base_requests=len(base),
        other_requests=len(other),
        clusters=clusters,
    )
