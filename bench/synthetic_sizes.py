"""Sizes of a synthetic trace. Beside ten million block events: what such a run records at each level."""

from __future__ import annotations

EPOCH_NS = 1_700_000_000_000_000_000
STEP_NS = 20_000_000
STEPS = 100_000
REQUESTS = 50_000
STEPS_OF_REQUEST = 20
BLOCKS = 20_000

LAYERS = 32
KV_HEADS = 8
TOKEN_BYTES = 4096
"""K and V of a token in a layer: 8 heads of 128, two bytes each."""

PINS = 200_000
TRANSFERS = 50_000
BLOCKS_OF_TRANSFER = 20
TIER_EVENTS = 1_000_000

TILE_STEPS = 50
"""Steps whose tiles are there, each of 8 heads, 32 layers, and 10 requests of some 50 blocks: 6.4 million tiles."""

PROFILED_STEPS = 5_000
KERNELS_OF_STEP = 400
