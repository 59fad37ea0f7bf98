"""Fits one clock to another, robustly, and says what the fit leaves unexplained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import duckdb
import numpy as np
import numpy.typing as npt

from kvtrace.ingest.gpu.enums import AlignmentMethod

SHORTEST_FOR_DRIFT_NS = 2_000_000_000
FEWEST_FOR_DRIFT = 5
_MOST_PAIRED = 400

Times = npt.NDArray[np.int64]


class Readings(NamedTuple):
    """The same moments on two clocks, ns."""

    method: AlignmentMethod
    source_ns: Times
    unix_ns: Times


class Alignment(NamedTuple):
    """UNIX time = t + offset_ns + (t - reference_ns) * drift_ppb / 1e9."""

    method: AlignmentMethod
    offset_ns: int
    reference_ns: int = 0
    drift_ppb: float = 0.0

    def sql(self, time: str) -> str:
        """The SQL that turns a source's time into UNIX time."""
        if not self.drift_ppb:
            return f"{time} + {self.offset_ns}"
        return f"{time} + {self.offset_ns} + CAST(({time} - {self.reference_ns}) * {self.drift_ppb / 1e9!r} AS BIGINT)"

    def unexplained(self, readings: Readings) -> Times:
        """Return the residual of each reading, ns, signed."""
        since = (readings.source_ns - self.reference_ns).astype(np.float64)
        drift: Times = np.rint(since * (self.drift_ppb / 1e9)).astype(np.int64)
        return readings.unix_ns - readings.source_ns - self.offset_ns - drift


def readings(method: AlignmentMethod, pairs: Sequence[tuple[int, int]]) -> Readings:
    """Pairs of (source's time, UNIX time) as readings."""
    values = np.array(pairs, np.int64).reshape(-1, 2)
    return Readings(method, values[:, 0].copy(), values[:, 1].copy())


def fit(measured: Readings) -> Alignment:
    """The offset and drift that explain most readings: medians, so that a few late ones do not matter.

    Drift is fitted only where the readings are many and far apart enough to show it.
    """
    reference = int(np.median(measured.source_ns))
    apart = measured.unix_ns - measured.source_ns
    base = int(apart[0])
    relative = (apart - base).astype(np.float64)
    since = (measured.source_ns - reference).astype(np.float64)
    drift = 0.0
    if len(since) >= FEWEST_FOR_DRIFT and np.ptp(since) >= SHORTEST_FOR_DRIFT_NS:
        drift = _median_slope(since, relative)
    offset = base + round(float(np.median(relative - since * drift)))
    return Alignment(measured.method, offset, reference, drift * 1e9)


def _median_slope(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    """The median slope over pairs of readings that are at least a third of the whole time apart."""
    if len(x) > _MOST_PAIRED:
        chosen = np.linspace(0, len(x) - 1, _MOST_PAIRED).astype(np.int64)
        x, y = x[chosen], y[chosen]
    first, second = np.triu_indices(len(x), 1)
    run = x[second] - x[first]
    far = np.abs(run) >= np.ptp(x) / 3
    return float(np.median((y[second] - y[first])[far] / run[far]))


def insert(
    connection: duckdb.DuckDBPyConnection, source_id: int, applied: Alignment, measured: Sequence[Readings]
) -> None:
    """Fill table `alignment`: the one applied, and what it leaves unexplained in each kind of reading there is."""
    kinds = {each.method: each for each in measured}
    if applied.method not in kinds:
        _insert_row(connection, source_id, applied, applied=True, left=None)
    for method, each in kinds.items():
        own = applied if method is applied.method else fit(each)
        _insert_row(connection, source_id, own, applied=own is applied, left=applied.unexplained(each))


def insert_check(connection: duckdb.DuckDBPyConnection, source_id: int, method: AlignmentMethod, left: Times) -> None:
    """Add a check that fits nothing: only what is left unexplained in readings of another kind."""
    row = [source_id, method.name, False, None, None, None, *figures(left)]
    connection.execute(_INSERT, row)


def _insert_row(
    connection: duckdb.DuckDBPyConnection, source_id: int, own: Alignment, *, applied: bool, left: Times | None
) -> None:
    row = [source_id, own.method.name, applied, own.offset_ns, own.reference_ns, own.drift_ppb, *figures(left)]
    connection.execute(_INSERT, row)


def figures(left: Times | None) -> list[int | None]:
    """Return the number of readings, and the median, 99th percentile and largest of their residuals, unsigned."""
    if left is None or not len(left):
        return [0, None, None, None]
    sizes = np.abs(left)
    return [len(sizes), *(round(float(np.percentile(sizes, q))) for q in (50, 99, 100))]


_INSERT = f"INSERT INTO alignment VALUES ({', '.join('?' * 10)})"
