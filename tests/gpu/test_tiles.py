"""On a GPU with vLLM: what `--kv-level tile` records, against block tables, sequence lengths and slot mappings.

    python -m pytest tests/gpu/test_tiles.py

Triton's backend, FlashAttention 4 and FlashInfer in FULL graphs, with prefix caching, chunked prefill, preemption and
mixed batches, and both of vLLM's model runners.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.gpu import has_gpu
from tests.gpu.test_windows import (
    ENGINE,
    FA4,
    FLASHINFER,
    LAYERS,
    LLAMA_8B,
    WORKLOAD,
    assert_windows_in_order,
    gpu_environment,
    runners_of,
)
from tests.vllm.conftest import HERE, Recorded, free_port, ingested, kvtrace, rows

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_gpu("vllm"), reason="needs a CUDA device, vLLM and CuPy")]

HEADS = LLAMA_8B["num_key_value_heads"]

# What attention must read and the cache write must store, from the scheduler's own records.
NEEDED = """
    SELECT s.step, s.request, b.position, b.block_id, b.written,
        s.computed_tokens + s.scheduled_tokens AS tokens, s.scheduled_tokens
    FROM step_request s JOIN step_block b USING (engine_id, step, request) JOIN engine e USING (engine_id)
    WHERE b.position * e.block_size_tokens < s.computed_tokens + s.scheduled_tokens
"""


class Kernels(NamedTuple):
    """Attention kernels that record tiles."""

    engine: dict[str, Any]
    decodes_increase: float
    """Of a program's reads while decoding: the share that is followed by one further on."""
    others_increase: float | None
    """Of other phases' reads; None: both orders occur."""
    writes_seen: bool
    needs: str | None = None


KERNELS = {
    "triton": Kernels({"attention_backend": "TRITON_ATTN"}, 1.0, 1.0, writes_seen=True),
    "fa4": Kernels(FA4, 0.0, 0.0, writes_seen=False, needs="cutlass"),
    "fa4_128": Kernels(
        {**FA4, "block_size": 128, "num_gpu_blocks_override": 10}, 0.0, 0.0, writes_seen=False, needs="cutlass"
    ),
    "flashinfer": Kernels(FLASHINFER, 1.0, None, writes_seen=False, needs="flashinfer"),
    "flashinfer_32": Kernels(
        {**FLASHINFER, "block_size": 32, "num_gpu_blocks_override": 36},
        1.0,
        None,
        writes_seen=False,
        needs="flashinfer",
    ),
}
"""By name. `fa4_128` has blocks of a tile's size, which the hardware's copy engine (TMA) loads. FlashInfer has decodes
read from the first block to the last, and prefills from the last tile to the first; those of one token count as
decodes."""


def record(folder: Path, ring_mb: int, runner: str = "v2", kernels: str = "triton") -> Recorded:
    if (needed := KERNELS[kernels].needs) and importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(LLAMA_8B))
    engine = {**ENGINE, "model": str(folder / "model"), **KERNELS[kernels].engine}
    config = {**WORKLOAD, "engine": engine, "kv_events_ports": [free_port(), free_port()]}
    script = [sys.executable, str(HERE / "offline.py"), json.dumps(config), str(folder / "truth.json")]
    environment = gpu_environment(runner)
    arguments = ["record", "-o", folder / "run", "--kv-level", "tile", "--ring-mb", str(ring_mb), "--", *script]
    done = kvtrace(*arguments, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    truth = json.loads((folder / "truth.json").read_text())
    return ingested(folder / "run", truth, done.stderr, "--all-tiles")


FLASHINFER_RUNS = ("flashinfer-v2", "flashinfer-v1", "flashinfer_32-v2")


@pytest.fixture(scope="module", params=["triton-v2", "triton-v1", "fa4-v2", "fa4-v1", "fa4_128-v2", *FLASHINFER_RUNS])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    kernels, runner = request.param.split("-")
    recorded = record(tmp_path_factory.mktemp("tiles"), 512, runner, kernels)
    assert runners_of(recorded) == {runner}
    recorded.truth.update(kernels=kernels)
    return recorded


@pytest.fixture(scope="module")
def cramped(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """With a ring that has no room for the larger steps."""
    return record(tmp_path_factory.mktemp("cramped"), 2)


def test_every_step_with_tokens_is_there_and_none_was_lost(recorded: Recorded) -> None:
    [(steps,)] = rows(recorded, "SELECT count(*) FROM step WHERE scheduled_tokens > 0")
    [(found, lost)] = rows(recorded, "SELECT count(*), sum(lost_steps) FROM tile_step WHERE programs > 0")
    assert found == steps > 100
    assert lost == 0


def test_tiles_read_exactly_the_blocks_of_each_request_in_every_layer_and_head(recorded: Recorded) -> None:
    """Both ways: nothing needed is missing, nothing else was read."""
    wrong = rows(
        recorded,
        f"""
        WITH needed AS ({NEEDED}), found AS (
            SELECT DISTINCT step, request, layer, head, position, block_id FROM kv_access WHERE kind = 'k_read'
        ), expected AS (
            SELECT step, request, layer, head, position, block_id
            FROM needed, range({LAYERS}) l(layer), range({HEADS}) h(head)
        )
        (SELECT 'missing', * FROM (SELECT * FROM expected EXCEPT SELECT * FROM found) LIMIT 5)
        UNION ALL (SELECT 'unexpected', * FROM (SELECT * FROM found EXCEPT SELECT * FROM expected) LIMIT 5)
        """,
    )
    assert wrong == []
    [(found,)] = rows(recorded, "SELECT count(*) FROM gpu_tile")
    assert found > 200_000


def test_every_sum_agrees_with_the_listed_blocks(recorded: Recorded) -> None:
    [(checked, wrong)] = rows(recorded, "SELECT sum(checked_programs), sum(wrong_programs) FROM tile_step")
    [(first_heads,)] = rows(recorded, "SELECT count(*) FROM gpu_program WHERE head = 0")
    assert checked == first_heads > 10_000
    assert wrong == 0


def test_written_slots_are_those_of_the_new_tokens(recorded: Recorded) -> None:
    if not KERNELS[recorded.truth["kernels"]].writes_seen:
        assert rows(recorded, "SELECT count(*) FROM gpu_write") == [(0,)]
        assert "cache writes are not recorded" in recorded.record_stderr
        return
    wrong = rows(
        recorded,
        f"""
        WITH tokens AS (
            SELECT s.engine_id, s.step, s.request, e.block_size_tokens AS size,
                unnest(range(s.computed_tokens, s.computed_tokens + s.scheduled_tokens)) AS token
            FROM step_request s JOIN engine e USING (engine_id)
        ), expected AS (
            SELECT t.step, layer, b.block_id * size + token % size AS slot, count(*) AS times
            FROM tokens t JOIN step_block b ON b.engine_id = t.engine_id AND b.step = t.step
                AND b.request = t.request AND b.position = t.token // size, range({LAYERS}) l(layer)
            GROUP BY ALL
        ), found AS (SELECT step, layer, slot, count(*) AS times FROM gpu_write GROUP BY ALL)
        (SELECT 'missing', * FROM (SELECT * FROM expected EXCEPT SELECT * FROM found) LIMIT 5)
        UNION ALL (SELECT 'unexpected', * FROM (SELECT * FROM found EXCEPT SELECT * FROM expected) LIMIT 5)
        """,
    )
    assert wrong == []


def test_layers_follow_each_other_and_lie_in_their_step(recorded: Recorded) -> None:
    assert_windows_in_order(recorded)


def test_access_queries_agree_with_the_tables(recorded: Recorded) -> None:
    """Programs go through their tiles in order; every tile and program counts once; means are below their most."""
    kernels = KERNELS[recorded.truth["kernels"]]
    [(tiles, programs)] = rows(recorded, "SELECT sum(tiles), sum(programs) FROM tile_step")
    order = recorded.trace.query("kv-read-order", format="arrow").to_pylist()
    assert sum(row["reads"] for row in order) == tiles
    assert sum(row["programs"] for row in order) == programs
    assert {row["phase"] for row in order} >= {"prefill", "decode"}
    for row in order:
        increase = kernels.decodes_increase if row["phase"] == "decode" else kernels.others_increase
        assert increase is None or row["in_program"] == increase
    assert all(row["phase"] is not None and row["block_id_in_program"] is not None for row in order)
    lag = recorded.trace.query("kv-lag", format="arrow").to_pylist()
    assert sum(row["accesses"] for row in lag if row["kind"] == "read") == tiles
    for row in recorded.trace.query("kv-parallelism", format="arrow").to_pylist():
        assert row["observed_passes"] == row["passes"] > 100
        assert 0 < row["mean_accesses"] <= row["max_accesses"]
        assert 1 <= row["mean_request_accesses"] <= row["max_request_accesses"] <= row["max_accesses"]
        assert 0 < row["mean_active_requests"] <= row["max_active_requests"]
    for row in recorded.trace.query("tile-idle", format="arrow").to_pylist():
        assert row["tiles"] <= row["reads"]
        assert 0 <= row["idle_share"] < 1


def test_steps_without_room_are_dropped_whole_and_counted(cramped: Recorded) -> None:
    """Each step is there completely or lost, and all steps are accounted for."""
    [(steps,)] = rows(cramped, "SELECT count(*) FROM step WHERE scheduled_tokens > 0")
    [(found, lost)] = rows(cramped, "SELECT count(*), sum(lost_steps) FROM tile_step WHERE programs > 0")
    assert found > 0
    assert lost > 0
    journal = next((cramped.run / "processes").glob("*/tiles.00000.kvt")).with_name("journal.jsonl").read_text()
    told = [json.loads(line) for line in journal.splitlines() if '"kind": "tiles"' in line or '"kind":"tiles"' in line]
    assert told[-1]["steps"] + told[-1]["lost_steps"] == steps
    assert found == told[-1]["steps"]
    partial = rows(
        cramped,
        f"""
        SELECT step, count(DISTINCT (layer, head, request, position)) AS found, max(needed) FROM kv_access
        JOIN (SELECT step, count(*) * {LAYERS} * {HEADS} AS needed FROM ({NEEDED}) GROUP BY step) n USING (step)
        WHERE kind = 'k_read' GROUP BY step HAVING found <> max(needed)
        """,
    )
    assert partial == []


def test_nothing_failed(recorded: Recorded) -> None:
    assert rows(recorded, "SELECT * FROM hook WHERE state = 'disabled'") == []
    assert rows(recorded, "SELECT * FROM stream WHERE dropped > 0 OR torn > 0") == []
    assert "tiles" in recorded.record_stderr
