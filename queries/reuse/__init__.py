"""Hits of a cache of another size or another policy: computed from block references, without an engine.

SQL cannot count reuse distances fast; numpy can. Functions take arrays and return arrays, frames or figures.
docs/reuse.md defines what a reference is.
"""

from kvtrace.queries.reuse.belady import Retentions
from kvtrace.queries.reuse.curve import HitCurve
from kvtrace.queries.reuse.distance import COLD, References, lru_distances
from kvtrace.queries.reuse.recorded import EngineReferences, read_references
from kvtrace.queries.reuse.sample import Sample, sample
from kvtrace.queries.reuse.sizing import miss_ratios, sizing

__all__ = [
    "COLD",
    "EngineReferences",
    "HitCurve",
    "References",
    "Retentions",
    "Sample",
    "lru_distances",
    "miss_ratios",
    "read_references",
    "sample",
    "sizing",
]
