"""The trace that queries are timed on, made small: rows for every query, in a second instead of half a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
_SIZES = {
    "STEPS": 2_000, "REQUESTS": 900, "BLOCKS": 400, "PINS": 500, "TRANSFERS": 300, "TIER_EVENTS": 2_000,
    "TILE_STEPS": 2, "PROFILED_STEPS": 20, "KERNELS_OF_STEP": 20,
}  # fmt: skip


def build_small(path: Path) -> None:
    """Write it to `path`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCH)
        import synthetic
        import synthetic_gpu
        import synthetic_ledger

        for module in (synthetic, synthetic_gpu, synthetic_ledger):
            for name, number in _SIZES.items():
                if hasattr(module, name):
                    patch.setattr(module, name, number)
        synthetic.build(path, block_events=5_000)
