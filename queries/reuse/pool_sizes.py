"""Rows of table `reuse_size`: hits of caches of a few multiples of each engine's pool. Computed when a query asks."""

from __future__ import annotations

from typing import NamedTuple

from kvtrace.queries.reuse.curve import HitCurve
from kvtrace.queries.reuse.distance import lru_distances
from kvtrace.queries.reuse.recorded import Asked, find_references

TIMES = (0.5, 1.0, 2.0, 4.0)
"""Sizes in multiples of an engine's pool."""

MOST_REFERENCES = 20_000_000
"""Of more there are no rows: they would take 10 s and more to compute, and gigabytes of memory."""

_REFERENCES = """
SELECT (SELECT count(*) FROM block_event WHERE op IN ('cache', 'free')) + (SELECT count(*) FROM request_hash) AS n
"""


class PoolSize(NamedTuple):
    """A row, with the table's columns."""

    engine_id: int
    times: float
    size_blocks: int
    lookups: int
    hits: int
    recorded_hits: int | None


def pool_sizes(trace: Asked) -> list[PoolSize]:
    """The rows of each recorded engine; none where nothing was looked up, or too much."""
    if trace.sql(_REFERENCES, format="arrow")["n"][0].as_py() > MOST_REFERENCES:
        return []
    found = []
    for engine in find_references(trace):
        if not engine.pool_blocks or engine.recorded_hits is None:
            continue
        lookups = engine.references.lookups
        curve = HitCurve.of(lru_distances(engine.references), engine.references.counted, lookups)
        for times in TIMES:
            size = int(engine.pool_blocks * times)
            hits = round(float(curve.hit_ratio(size)) * lookups) if lookups else 0
            recorded = engine.recorded_hits if times == 1 else None
            found.append(PoolSize(engine.engine_id, times, size, round(lookups), hits, recorded))
    return found
