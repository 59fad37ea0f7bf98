"""Size of the cache that a workload needs: misses by size, and the sizes that reach given hit rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.queries.reuse.recorded import EngineReferences
from kvtrace.queries.reuse.sample import Sample, sample

if TYPE_CHECKING:
    import pandas as pd

SIZES = 24
"""Sizes of a curve when none are given."""

UNITS = {
    "size_blocks": "blocks",
    "size_tokens": "tokens",
    "size_bytes": "bytes",
    "beyond_pool_bytes": "bytes",
    "lru_miss_ratio": "ratio",
    "lru_error": "ratio",
    "belady_miss_ratio": "ratio",
    "belady_error": "ratio",
    "recorded_miss_ratio": "ratio",
}
"""Units of the columns of `sizing`."""


def miss_ratios(sampled: Sample, sizes: Sequence[int]) -> pd.DataFrame:
    """Miss ratios of caches of these sizes, with the standard error of a sample.

    Returns:
        size_blocks, lru_miss_ratio, lru_error, belady_miss_ratio, belady_error. Errors are NaN if nothing was sampled,
        ratios are NaN at sizes that are too small for the sample.
    """
    import pandas as pd

    frame = pd.DataFrame({"size_blocks": pd.Series(list(sizes), dtype="Int64")})
    for name in ("lru", "belady"):
        frame[f"{name}_miss_ratio"] = 1 - getattr(sampled, name)(sizes)
        parts = [getattr(part, name)(sizes) for part in sampled.parts()]
        frame[f"{name}_error"] = np.std(parts, axis=0, ddof=1) / np.sqrt(len(parts)) if parts else math.nan
    frame.loc[frame.size_blocks < sampled.smallest, frame.columns[1:]] = math.nan
    return frame


def sizing(
    engines: Iterable[EngineReferences],
    sizes: Sequence[int] = (),
    hit_rates: Sequence[float] = (),
    rate: float = 1.0,
    block_bytes: int | None = None,
) -> pd.DataFrame:
    """Compute the misses of caches of several sizes, and the sizes that reach given hit rates.

    Args:
        engines: From `read_references`; each has its own cache.
        sizes: Sizes in blocks. Without: `SIZES` of them, up to one that holds everything.
        hit_rates: Also the smallest sizes that reach these rates, with LRU and at best.
        rate: Share of the blocks to sample; 1 is exact.
        block_bytes: Bytes a block, where the trace does not know.

    Returns:
        A row an engine and size, sizes ascending. `size_of` says what the size is: given, pool, everything, or the hit
        rate that it reaches; that row's size is NA if no size does. Sizes spread over the curve are called spread.
    """
    import pandas as pd

    frames = [_sizing(engine, sample(engine.references, rate), sizes, hit_rates, block_bytes) for engine in engines]
    return pd.concat(frames, ignore_index=True)


def _sizing(
    engine: EngineReferences,
    sampled: Sample,
    sizes: Sequence[int],
    hit_rates: Sequence[float],
    block_bytes: int | None,
) -> pd.DataFrame:
    import pandas as pd

    everything = max(engine.references.blocks, 1)
    wanted: list[tuple[str, int | None]] = [
        ("given" if sizes else "spread", size) for size in sizes or _spread(everything)
    ]
    if engine.pool_blocks:
        wanted.append(("pool", engine.pool_blocks))
    if not sizes:
        wanted.append(("everything", everything))
    for hit_rate in hit_rates:
        wanted.append((f"{hit_rate:.6g} hits, LRU", sampled.lru_size_for(hit_rate)))
        wanted.append((f"{hit_rate:.6g} hits, Belady", sampled.belady_size_for(hit_rate)))
    known = [(name, size) for name, size in wanted if size is not None]
    known.sort(key=lambda row: row[1])
    frame = miss_ratios(sampled, [size for _, size in known])
    frame.insert(0, "size_of", [name for name, _ in known])
    unreached = pd.DataFrame({"size_of": [name for name, size in wanted if size is None]})
    frame = pd.concat([frame, unreached], ignore_index=True) if len(unreached) else frame
    frame.insert(0, "engine_id", engine.engine_id)
    return _in_bytes(frame, engine, block_bytes or engine.block_bytes)


def _in_bytes(frame: pd.DataFrame, engine: EngineReferences, block_bytes: int | None) -> pd.DataFrame:
    import pandas as pd

    size = frame.size_blocks
    unknown = pd.Series(pd.NA, frame.index, "Int64")
    frame.insert(3, "size_tokens", size * engine.block_tokens)
    frame.insert(4, "size_bytes", size * block_bytes if block_bytes else unknown)
    beyond = (size - (engine.pool_blocks or 0)).clip(lower=0)
    frame.insert(5, "beyond_pool_bytes", beyond * block_bytes if block_bytes and engine.pool_blocks else unknown)
    frame["recorded_miss_ratio"] = math.nan
    if engine.recorded_hits is not None and engine.references.lookups:
        recorded = 1 - engine.recorded_hits / engine.references.lookups
        frame.loc[frame.size_of == "pool", "recorded_miss_ratio"] = recorded
    return frame


def _spread(largest: int) -> list[int]:
    """Sizes in equal ratios from 1 to below the largest."""
    return sorted({round(size) for size in np.geomspace(1, largest, SIZES)} - {largest})
