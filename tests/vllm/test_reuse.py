"""Input of the reuse model, against what a real engine's pool did."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.vllm.conftest import Recorded

REALITY = Path(__file__).parents[2] / "bench" / "reuse_reality.py"


def test_looked_up_blocks_are_those_of_the_lookups(cached: Recorded) -> None:
    [row] = cached.trace.sql(
        "SELECT sum(local_hit_tokens) // 32 AS hits, sum((queried_tokens - 1) // 32) AS lookups, "
        "(SELECT count(*) FROM block_lookup WHERE counted AND hit) AS named_hits, "
        "(SELECT count(*) FROM block_lookup WHERE counted) AS named "
        "FROM prefix_lookup WHERE admitted AND NOT resumed",
        format="arrow",
    ).to_pylist()

    assert row["hits"] == row["named_hits"] > 0
    assert row["lookups"] == row["named"]


def test_replayed_pool_has_the_recorded_hits_and_evictions(cached: Recorded) -> None:
    """The replay.

    GIVEN the recorded lookups, allocations, stores and releases
    WHEN a model of vLLM's pool lives through them
    THEN it finds and evicts as often as the pool did: the references are right, and in the right order.
    """
    done = subprocess.run(
        [sys.executable, REALITY, cached.trace.path], capture_output=True, text=True, check=True, timeout=120
    )
    counts = {
        what.strip(): (int(hits), int(evictions))
        for what, hits, evictions in re.findall(
            r"^  (.{36}) +(\d+) hits .* (\d+) evictions$", done.stdout, re.MULTILINE
        )
    }

    assert counts["replay of the pool"] == counts["recorded"]
    assert counts["recorded"][1] > 0, "the workload is meant to evict"
    assert counts["LRU cache"][0] >= 0.8 * counts["recorded"][0]
