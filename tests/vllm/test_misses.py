"""Each verdict against a workload on a real vLLM that is built to cause exactly that miss."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.conftest import ENGINE, HERE, MODEL, Recorded, ingested, kvtrace, vllm_environment
from tests.vllm.reproduction import check_all

BLOCK = 32
MISSES = {
    **ENGINE,
    "max_model_len": 512,
    "num_gpu_blocks_override": 20,
    "long_prefill_token_threshold": 64,
    "enable_lora": True,
    "max_loras": 1,
    "max_lora_rank": 8,
}


def make_adapter(folder: Path) -> Path:
    """A LoRA adapter of zeros for the tiny model: it changes no output, but it is another key."""
    import torch
    from safetensors.torch import save_file

    size = json.loads((MODEL / "config.json").read_text())["hidden_size"]
    weights = {
        f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{side}.weight": torch.zeros(shape)
        for layer in range(4)
        for side, shape in (("A", (8, size)), ("B", (size, 8)))
    }
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    facts = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(facts))
    return folder


@pytest.fixture(scope="module")
def recorded(warm_python: list[str], tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("misses")
    config = {"engine": MISSES, "adapter": str(make_adapter(folder / "adapter"))}
    script = [*warm_python, str(HERE / "misses.py"), json.dumps(config), str(folder / "truth.json")]
    # In one process both requests of a pair are with the scheduler before its first step: none can overtake.
    environment = vllm_environment(VLLM_ENABLE_V1_MULTIPROCESSING="0")
    done = kvtrace("record", "-o", folder / "run", "--", *script, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return ingested(folder / "run", json.loads((folder / "truth.json").read_text()), done.stderr)


@pytest.fixture(scope="module")
def misses(recorded: Recorded) -> dict[str, dict[str, Any]]:
    """The rows of prefix_miss by the case their request is tagged with."""
    sql = "SELECT r.session, o.session AS other, m.* FROM prefix_miss m JOIN request r USING (request) "
    sql += "LEFT JOIN request o ON o.request = m.other_request"
    rows = recorded.trace.sql(sql, format="arrow").to_pylist()
    assert len(rows) == len({row["session"] for row in rows}), "each case is one request, admitted once"
    return {row["session"]: row for row in rows}


VERDICTS = {
    # case: verdict, block, tokens an earlier request had too, tokens computed, those that were avoidable, other request
    "first": ("never_stored", 0, 0, 100, 0, None),
    "beyond": ("never_stored", 2, 64, 60, 0, None),
    "short": ("shorter_than_block", 0, 0, 20, 0, None),
    "tail": ("shorter_than_block", 3, 96, 4, 0, None),
    "whole": ("last_token", 2, 96, 32, 0, None),
    "salted": ("different_key", 0, 96, 100, 96, "first"),
    "salted-again": ("shorter_than_block", 3, 96, 4, 0, None),
    "salted-otherwise": ("different_key", 0, 96, 100, 96, "salted"),
    "adapted": ("different_key", 0, 96, 100, 96, "salted-otherwise"),
    "logprobs": ("reading_skipped", 0, None, 100, None, None),
    "filler": ("never_stored", 0, 0, 500, 0, None),
    "evictor": ("never_stored", 0, 0, 500, 0, None),
    "evicted": ("evicted", 0, 96, 100, 96, "evictor"),
    "reset": ("reset", 0, 96, 100, 96, None),
    "ahead": ("never_stored", 0, 0, 250, 0, None),
    "behind": ("not_finished_storing", 2, 224, 186, 160, "ahead"),
    "plain-after-salted": ("never_stored", 0, 0, 40, 0, None),
    "plain": ("different_key", 0, 32, 40, 32, "plain-after-salted"),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_verdict_is_the_reason_the_workload_was_built_for(misses: dict[str, dict[str, Any]], case: str) -> None:
    row = misses[case]
    names = ("verdict", "block_position", "known_tokens", "recomputed_tokens", "avoidable_tokens", "other")
    assert tuple(row[name] for name in names) == VERDICTS[case], row["why"]


def test_hits_are_what_vllm_told_each_client(recorded: Recorded, misses: dict[str, dict[str, Any]]) -> None:
    assert {case: row["local_hit_tokens"] for case, row in misses.items()} == recorded.truth


def test_the_key_that_differs_is_named(misses: dict[str, dict[str, Any]]) -> None:
    found = {case: row["key_difference"] for case, row in misses.items() if row["key_difference"]}
    assert found == {
        "salted": "cache_salt",
        "salted-otherwise": "cache_salt",
        "adapted": "cache_salt, lora",
        "plain": "cache_salt",
    }


def test_an_eviction_lies_between_its_storing_and_its_miss(misses: dict[str, dict[str, Any]]) -> None:
    row = misses["evicted"]
    assert misses["first"]["time_ns"] < row["stored_ns"] < row["released_ns"] < row["lost_ns"] < row["time_ns"]
    assert misses["evictor"]["time_ns"] < row["lost_ns"]
    behind = misses["behind"]
    assert behind["time_ns"] < behind["stored_ns"], "the request ahead stored the block after the lookup"


@pytest.mark.usefixtures("warm_replays")
def test_a_replay_misses_alike(recorded: Recorded, tmp_path: Path) -> None:
    """With salts, an adapter, a reset of the cache and a limit on how much of a prompt a step computes."""
    check_all({"misses": recorded.run / "trace.duckdb"}, tmp_path)


def test_no_salt_is_in_the_recording(recorded: Recorded) -> None:
    assert not [path for path in recorded.run.rglob("*") if path.is_file() and b"a secret" in path.read_bytes()]


def test_hashes_without_keys_are_vllms_own(recorded: Recorded) -> None:
    """The token hashes of a salted prompt are the block hashes of the same prompt without a salt."""
    sql = "SELECT h.position, h.{} AS hash FROM request_hash h JOIN request r USING (request) WHERE r.session = '{}'"
    plain, salted = (
        recorded.trace.sql(sql.format(column, case) + " ORDER BY position", format="arrow").to_pylist()
        for column, case in (("block_hash", "first"), ("token_hash", "salted"))
    )
    assert plain == salted
    assert len(plain) == 3


def test_every_admitted_lookup_has_its_verdict(cached: Recorded, uncached: Recorded, recorded: Recorded) -> None:
    for trace in (cached.trace, uncached.trace, recorded.trace):
        [row] = trace.sql(
            "SELECT count(*) AS lookups, (SELECT count(*) FROM prefix_miss) AS verdicts, "
            "(SELECT count_if(verdict = 'unknown') FROM prefix_miss) AS unknown FROM prefix_lookup WHERE admitted",
            format="arrow",
        ).to_pylist()
        assert row["lookups"] == row["verdicts"] > 0
        assert row["unknown"] == 0


def test_with_caching_off_that_is_the_verdict(uncached: Recorded) -> None:
    found = uncached.trace.sql("SELECT DISTINCT verdict, known_tokens FROM prefix_miss", format="arrow").to_pylist()
    assert found == [{"verdict": "caching_off", "known_tokens": None}]


def test_evicted_blocks_are_in_vllms_own_removed_events(cached: Recorded) -> None:
    rows = cached.trace.sql("SELECT verdict, block_hash FROM prefix_miss", format="arrow").to_pylist()
    removed = {block_hash for block_hash, _ in cached.truth["events"]["removed"]}
    evicted = {row["block_hash"] for row in rows if row["verdict"] == "evicted"}
    assert evicted, "the workload is meant to evict prefixes that come again"
    assert evicted <= removed


def test_a_preempted_request_gets_back_all_it_lost(cached: Recorded) -> None:
    rows = cached.trace.query("preemption-ledger", format="arrow").to_pylist()
    resumed = [row for row in rows if row["outcome"] == "resumed"]
    assert len(resumed) == cached.truth["counters"]["vllm:num_preemptions"], "in this workload all resume"
    times = Counter(row["request"] for row in rows)
    once = [row for row in resumed if times[row["request"]] == 1]  # others may be preempted before they have it all
    assert once
    for row in once:
        # The last of the tokens a preempted request has is one whose KV it never had.
        assert row["cached_tokens"] + row["recomputed_tokens"] in (row["lost_tokens"], row["lost_tokens"] + 1)
        assert row["added_ms"] is not None
        assert row["verdict"] in ("evicted", "shorter_than_block", "last_token", "never_stored")


def test_requests_have_the_adapter_they_asked_for(recorded: Recorded) -> None:
    rows = recorded.trace.sql("SELECT session, tenant, lora FROM request WHERE lora IS NOT NULL", "arrow").to_pylist()
    assert rows == [{"session": "adapted", "tenant": None, "lora": "tiny-adapter"}]
    holders = {row["holder"]: row for row in recorded.trace.query("kv-holders", "arrow", by="lora").to_pylist()}
    sessions = {row["holder"]: row for row in recorded.trace.query("kv-holders", "arrow", by="session").to_pylist()}
    assert holders.keys() == {None, "tiny-adapter"}
    assert holders["tiny-adapter"] == pytest.approx(sessions["adapted"] | {"holder": "tiny-adapter"})
