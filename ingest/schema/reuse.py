"""The table of what the workload would have found in caches of other sizes."""

from __future__ import annotations

from kvtrace.ingest.schema.declare import BIGINT, DOUBLE, INTEGER, Table, column

REUSE_SIZE = Table(
    "reuse_size",
    "Hits of LRU caches of 0.5, 1, 2 and 4 times the engine's GPU pool (derived), from its own block references; "
    "docs/reuse.md has the definitions. Empty in the file: `kvtrace query reuse` computes it, for recorded engines.",
    (
        column("engine_id", INTEGER, "The engine."),
        column("times", DOUBLE, "The cache's size as a multiple of the pool's."),
        column("size_blocks", BIGINT, "The size in blocks."),
        column("lookups", BIGINT, "Blocks looked up, at first admissions."),
        column("hits", BIGINT, "Of them, those that such a cache has."),
        column("recorded_hits", BIGINT, "Of them, those that the engine's own pool had; only where times is 1."),
    ),
)
