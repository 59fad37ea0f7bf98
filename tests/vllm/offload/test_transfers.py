"""The ledger of transfers against what the connectors themselves did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from tests.vllm.offload.conftest import Ledger
from tests.vllm.offload.engines import BLOCK_BYTES


def blocks_of_transfers(ledger: Ledger) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for row in ledger.rows("SELECT * FROM transfer_block ORDER BY rowid"):
        found.setdefault(row["transfer"], []).append((row["gpu_block_id"], row["other_block_id"]))
    return found


def test_offloading_connectors_jobs_are_the_recorded_transfers(offloading: Ledger) -> None:
    # GIVEN what the spec's worker copied, as it wrote it down
    own = offloading.own
    assert {line["direction"] for line in own} == {"store", "load"}
    # WHEN the recording is read
    transfers = offloading.rows("SELECT * FROM transfer ORDER BY submitted_ns, transfer")
    blocks = blocks_of_transfers(offloading)
    # THEN each job is there, in the order of submission, with its direction, bytes, and blocks on both sides
    found = [
        {
            "direction": row["direction"],
            "job": row["transfer"] & ((1 << 40) - 1),
            "gpu": [gpu for gpu, _ in blocks[row["transfer"]]],
            "cpu": [cpu for _, cpu in blocks[row["transfer"]]],
            "bytes": row["bytes"],
        }
        for row in transfers
    ]
    assert found == own
    assert all(row["success"] and row["submitted_ns"] <= row["finished_ns"] for row in transfers)
    assert all(row["device_ns"] is None and row["reported_ns"] > 0 for row in transfers)
    tiers = {row["direction"]: (row["from_tier"], row["to_tier"]) for row in transfers}
    assert tiers == {"store": ("gpu", "cpu"), "load": ("cpu", "gpu")}


def test_offloading_bytes_and_hits_equal_vllms_counters(offloading: Ledger) -> None:
    """The recorded bytes are the connector's own, as shown above; vLLM's counter is a second witness.

    Before vLLM 0.28 an offline LLM does not count what it is told with a step that gave no request a token.
    """
    counters = offloading.recorded.truth["counters"]
    [process] = offloading.rows("SELECT any_value(vllm_version) AS vllm FROM process")
    counted = "true" if Version(process["vllm"]) >= Version("0.28") else "output_tokens IS DISTINCT FROM 0"
    found = offloading.rows(
        f"SELECT direction, coalesce(sum(bytes) FILTER ({counted}), 0)::BIGINT AS bytes "
        "FROM transfer ASOF LEFT JOIN step ON finished_ns <= update_ns GROUP BY 1"
    )
    assert {row["direction"] for row in found} == {"store", "load"}
    for row in found:
        assert counters[f"vllm:kv_offload_{row['direction']}_bytes"] == row["bytes"]
    hits = offloading.rows(
        "SELECT sum(external_hit_tokens)::BIGINT AS tokens, "
        f"coalesce(sum(external_hit_tokens) FILTER ({counted}), 0)::BIGINT AS counted "
        "FROM prefix_lookup ASOF LEFT JOIN step ON time_ns <= update_ns WHERE admitted"
    )
    [tier] = offloading.rows("SELECT count(*) AS blocks FROM tier_block WHERE op = 'hit'")
    assert hits == [{"tokens": tier["blocks"] * 32, "counted": counters["vllm:external_prefix_cache_hits"]}]


@pytest.mark.parametrize("name", ["offloading", "simple_cpu", "disk"])
def test_hits_add_up_to_vllms_count_by_source(name: str, request: Any) -> None:
    ledger: Ledger = request.getfixturevalue(name)
    by_source = dict(ledger.recorded.truth["by_source"])
    if not by_source:
        pytest.skip("this vLLM does not count by source: 0.32 was the first")
    [found] = ledger.rows(
        "SELECT sum(local_hit_tokens)::BIGINT AS local, sum(external_hit_tokens)::BIGINT AS external "
        "FROM prefix_lookup WHERE admitted AND NOT resumed"
    )
    assert found["local"] == by_source.pop("device")
    assert found["external"] == sum(by_source.values()) > 0


def test_simple_cpu_copies_are_the_recorded_transfers(simple_cpu: Ledger) -> None:
    transfers = simple_cpu.rows("SELECT * FROM transfer ORDER BY started_ns, transfer")
    blocks = blocks_of_transfers(simple_cpu)
    found = []
    for row in transfers:
        gpu, cpu = (list(side) for side in zip(*blocks[row["transfer"]], strict=True))
        source, target = (gpu, cpu) if row["direction"] == "store" else (cpu, gpu)
        found.append({"source": source, "target": target, "bytes": row["bytes"]})
    assert found == simple_cpu.own
    assert {row["direction"] for row in transfers} == {"store", "load"}
    assert all(row["submitted_ns"] <= row["started_ns"] <= row["finished_ns"] for row in transfers)
    loaded = sum(row["blocks"] for row in transfers if row["direction"] == "load")
    counters = simple_cpu.recorded.truth["counters"]
    assert loaded == counters.get("vllm:simple_kv_offload_load_blocks", loaded)  # vLLM 0.27 and 0.29 count none


@pytest.mark.parametrize("name", ["offloading", "simple_cpu", "disk"])
def test_every_block_of_a_transfer_has_its_content_hash_and_request(name: str, request: Any) -> None:
    ledger: Ledger = request.getfixturevalue(name)
    assert ledger.rows("SELECT count(*) AS n FROM transfer_block WHERE block_hash IS NULL OR request IS NULL") == [
        {"n": 0}
    ]
    # A loaded block's hash is the one under which the GPU pool then caches it, for the same block and request.
    wrong = ledger.rows(
        "SELECT t.block_hash FROM transfer_block t WHERE direction = 'load' AND NOT EXISTS "
        "(FROM block_event b WHERE b.op = 'cache' AND b.block_id = t.gpu_block_id AND b.block_hash = t.block_hash "
        "AND b.time_ns > t.time_ns)"
    )
    assert not wrong


@pytest.mark.parametrize("name", ["offloading", "simple_cpu", "disk"])
def test_loads_bring_back_what_was_stored(name: str, request: Any) -> None:
    """A load reads a tier block under the hash it was stored with, and not evicted since."""
    ledger: Ledger = request.getfixturevalue(name)
    held: dict[int, int] = {}
    loads = 0
    for row in ledger.rows("SELECT * FROM tier_block ORDER BY rowid"):
        if row["op"] == "store":
            held[row["tier_block_id"]] = row["block_hash"]
        elif row["op"] in ("evict", "drop"):
            held.pop(row["tier_block_id"], None)
        elif row["op"] == "hit":
            loads += 1
            assert held[row["tier_block_id"]] == row["block_hash"]
    assert loads == ledger.rows("SELECT count(*) AS n FROM transfer_block WHERE direction = 'load'")[0]["n"] > 0
    capacity = ledger.rows("SELECT max(capacity_blocks) AS n FROM connector")[0]["n"]
    assert len(held) <= capacity


def test_a_part_of_a_multi_connector_is_recorded_as_itself(disk: Ledger) -> None:
    connectors = disk.rows("SELECT part, connector, role, recorded FROM connector ORDER BY role, part")
    assert [tuple(row.values()) for row in connectors] == [
        (0, "MultiConnector", "scheduler", "generically"),
        (1, "SimpleCpuWithoutGpu", "scheduler", "in detail"),
        (0, "MultiConnector", "worker", "generically"),
        (1, "SimpleCpuWithoutGpu", "worker", "in detail"),
    ]
    transfers = disk.rows("SELECT * FROM transfer")
    assert {(row["from_tier"], row["to_tier"]) for row in transfers} == {("gpu", "disk"), ("disk", "gpu")}
    # The disk backend copies through a staging buffer, block by block; the stand-in for the copy wrote each down.
    assert sum(row["bytes"] for row in transfers) == sum(line["bytes"] for line in disk.own)
    assert all(row["bytes"] == row["blocks"] * BLOCK_BYTES for row in transfers)
    assert all(row["submitted_ns"] <= row["started_ns"] < row["finished_ns"] for row in transfers)


def test_example_connectors_files_hold_the_recorded_bytes(example: tuple[Ledger, Path]) -> None:
    ledger, folder = example
    stored = ledger.rows("SELECT * FROM transfer WHERE direction = 'store'")
    assert sum(row["bytes"] for row in stored) == sum(tensor_bytes(file) for file in folder.glob("*/*.safetensors"))
    loaded = ledger.rows(
        "SELECT sum(bytes)::BIGINT AS bytes, sum(blocks)::BIGINT AS blocks FROM transfer WHERE direction = 'load'"
    )
    assert loaded == [{"bytes": 8 * 3 * BLOCK_BYTES, "blocks": 8 * 3}], "every prompt comes again"
    requests = ledger.rows("SELECT count(DISTINCT request) AS n FROM transfer_block WHERE direction = 'load'")
    assert requests == [{"n": 8}]


def tensor_bytes(path: Path) -> int:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    return sum(t["data_offsets"][1] - t["data_offsets"][0] for name, t in header.items() if name != "__metadata__")


@pytest.mark.parametrize("name", ["offloading", "simple_cpu", "disk"])
def test_every_join_of_the_ledger_matches_and_no_hook_failed(name: str, request: Any) -> None:
    ledger: Ledger = request.getfixturevalue(name)
    assert not ledger.rows("SELECT * FROM hook WHERE state = 'disabled'")
    joins = ledger.rows("SELECT * FROM join_count WHERE unmatched > 0 AND (name LIKE 'transfer%' OR name LIKE 'pin%')")
    assert not joins


def test_any_connector_is_recorded_by_its_interface(disk: Ledger) -> None:
    """The MultiConnector itself has no adapter: what it was asked and its calls are there, as its part's are."""
    sums = "count(*) AS lookups, sum(matched_tokens)::BIGINT AS tokens"
    lookups = disk.rows(f"SELECT part, {sums} FROM connector_lookup GROUP BY 1 ORDER BY 1")
    assert [row["part"] for row in lookups] == [0, 1]
    assert lookups[0] | {"part": 1} == lookups[1]
    # vLLM 0.27 and 0.29 save in steps with tokens only.
    steps = disk.rows("SELECT count_if(scheduled_tokens > 0)::BIGINT AS n FROM step")[0]["n"]
    calls = disk.rows("SELECT part, call, count(*) AS n FROM connector_call GROUP BY ALL ORDER BY ALL")
    assert {(row["part"], row["call"]) for row in calls} == {
        (part, call) for part in (0, 1) for call in ("load", "save", "poll")
    }
    assert all(row["n"] >= steps for row in calls)
