"""Each rule that cuts a prefix hit, on engines and workloads that are built to lose tokens to it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.vllm.conftest import ENGINE, HERE, MODEL, Recorded, ingested, kvtrace, vllm_environment

BLOCK = 32
BIG = {**ENGINE, "num_gpu_blocks_override": 96}
WINDOWS = {"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 64}
LFM2 = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "torch_dtype": "float32",
    "vocab_size": 4096,
    "num_hidden_layers": 2,
    "layer_types": ["conv", "full_attention"],
    "conv_L_cache": 3,
    "conv_bias": False,
    "hidden_size": 128,
    "block_dim": 128,
    "conv_dim": 128,
    "conv_dim_out": 128,
    "norm_eps": 1e-5,
    "intermediate_size": 256,
    "block_ff_dim": 256,
    "block_auto_adjust_ff_dim": False,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}
"""A hybrid of short convolutions, whose state vLLM keeps as it does Mamba's, and full attention."""

LONG, TURN, OTHER, FILLER = 11, 12, 13, 14
CASES: dict[str, list[list[int]]] = {
    "first": [[LONG, 300]],
    "again": [[LONG, 300]],
    "whole": [[OTHER, 96]],
    "whole-again": [[OTHER, 96]],
    "branch": [[LONG, 200], [TURN, 60]],
    "branch-again": [[LONG, 200], [TURN, 60]],
}


def draft_model(folder: Path, kv_heads: int) -> str:
    """A draft model of one layer; with fewer KV heads its blocks hold more tokens."""
    config = json.loads((MODEL / "config.json").read_text())
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({**config, "num_hidden_layers": 1, "intermediate_size": 256, "num_key_value_heads": kv_heads})
    )
    return str(folder)


def state_model(folder: Path) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LFM2))
    return str(folder)


@pytest.fixture(scope="module")
def recorded(warm_python: list[str], tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("gates")
    same, narrow = (draft_model(folder / f"draft-{heads}", heads) for heads in (4, 2))
    state = {"model": state_model(folder / "lfm2"), "mamba_cache_mode": "align", "enable_prefix_caching": True}
    options = {
        "plain": {"num_gpu_blocks_override": 20},
        "window": {"hf_overrides": WINDOWS, "num_gpu_blocks_override": 48},
        "retained": {"hf_overrides": WINDOWS, "prefix_cache_retention_interval": 64},
        "state": state,
        "eagle": {"speculative_config": {"method": "eagle", "model": same, "num_speculative_tokens": 1}},
        # Blocks of 32 and 64 tokens: hits are multiples of 64.
        "alignment": {
            "hf_overrides": WINDOWS,
            "speculative_config": {"method": "draft_model", "model": narrow, "num_speculative_tokens": 1},
        },
        "all": {
            "hf_overrides": WINDOWS,
            "speculative_config": {"method": "eagle", "model": narrow, "num_speculative_tokens": 1},
        },
    }
    evicting = {"filler": [[FILLER, 480]], "filler-2": [[FILLER + 1, 480]], "evicted": [[LONG, 300]]}
    engines = {
        name: {"options": {**BIG, **more}, "cases": CASES | (evicting if name in ("plain", "window") else {})}
        for name, more in options.items()
    }
    script = [*warm_python, str(HERE / "gates.py"), json.dumps(engines), str(folder / "truth.json")]
    environment = vllm_environment(VLLM_ENABLE_V1_MULTIPROCESSING="0")
    done = kvtrace("record", "-o", folder / "run", "--", *script, env=environment, timeout=400)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return ingested(folder / "run", json.loads((folder / "truth.json").read_text()), done.stderr)


Losses = dict[tuple[str, str], list[tuple[str, int | None, int, int]]]


@pytest.fixture(scope="module")
def losses(recorded: Recorded) -> Losses:
    """By engine and case: rule, group, lost tokens, and those that an earlier request had."""
    names = {told["pid"]: name for name, told in recorded.truth.items()}
    rows = recorded.trace.sql(
        "SELECT p.pid, r.session, l.rule, l.kv_group, l.lost_tokens, l.known_tokens FROM prefix_loss l "
        "JOIN process p ON p.process_id = l.engine_id JOIN request r USING (request) ORDER BY l.time_ns, l.place",
        format="arrow",
    ).to_pylist()
    found: Losses = {}
    for row in rows:
        key = (names[row["pid"]], row["session"])
        found.setdefault(key, []).append((row["rule"], row["kv_group"], row["lost_tokens"], row["known_tokens"]))
    return found


EXPECTED: Losses = {
    ("plain", "first"): [("partial_block", None, 12, 0), ("absent", 0, 288, 0)],
    ("plain", "again"): [("partial_block", None, 12, 0)],
    ("plain", "whole-again"): [("last_token", None, BLOCK, BLOCK)],
    ("plain", "evicted"): [("partial_block", None, 12, 0), ("absent", 0, 288, 288)],
    ("window", "again"): [("partial_block", None, 12, 0)],
    ("window", "branch"): [("partial_block", None, 4, 0), ("absent", 0, 64, 0), ("window_gap", 1, 192, 192)],
    ("window", "branch-again"): [("partial_block", None, 4, 0)],
    ("retained", "branch"): [("partial_block", None, 4, 0), ("absent", 0, 64, 0)],
    ("state", "again"): [("partial_block", None, 12, 0)],
    ("state", "branch"): [("partial_block", None, 4, 0), ("absent", 1, 64, 0), ("no_state", 0, 192, 192)],
    ("eagle", "again"): [("partial_block", None, 12, 0), ("eagle_drop", 0, BLOCK, BLOCK)],
    ("alignment", "again"): [("partial_block", None, 12, 0), ("alignment", 0, BLOCK, BLOCK)],
    ("all", "branch"): [
        ("partial_block", None, 4, 0),
        ("absent", 0, 64, 0),
        ("eagle_drop", 0, 32, 32),
        ("alignment", 0, 32, 32),
        ("window_gap", 2, 128, 128),
    ],
}
"""In each case but the last, all lost tokens that an earlier request had are lost to one rule."""


@pytest.mark.parametrize(("engine", "case"), EXPECTED, ids=map("-".join, EXPECTED))
def test_tokens_are_lost_to_the_rule_that_the_workload_was_built_for(losses: Losses, engine: str, case: str) -> None:
    assert losses[engine, case] == EXPECTED[engine, case]


def test_an_engine_with_one_group_of_full_attention_records_no_answers_of_groups(recorded: Recorded) -> None:
    rows = recorded.trace.sql(
        "SELECT pid, count(g.engine_id) AS answers FROM process LEFT JOIN group_lookup g ON engine_id = process_id "
        "GROUP BY pid",
        format="arrow",
    ).to_pylist()
    answers = {row["pid"]: row["answers"] for row in rows}
    assert {name: answers[told["pid"]] > 0 for name, told in recorded.truth.items()} == {
        name: name != "plain" for name in recorded.truth
    }


def test_losses_add_up_to_vllms_own_counters(recorded: Recorded) -> None:
    for told in recorded.truth.values():
        [row] = recorded.trace.sql(
            "SELECT sum(lost_tokens)::BIGINT AS lost FROM prefix_loss JOIN process ON process_id = engine_id "
            f"WHERE pid = {told['pid']} AND NOT resumed",
            format="arrow",
        ).to_pylist()
        counters = told["counters"]
        assert row["lost"] == counters["vllm:prefix_cache_queries"] - counters["vllm:prefix_cache_hits"] > 0


def test_what_is_lost_lies_behind_what_vllm_told_the_client(recorded: Recorded) -> None:
    for told in recorded.truth.values():
        rows = recorded.trace.sql(
            "SELECT r.session, min(l.start_tokens) AS hit FROM prefix_loss l JOIN request r USING (request) "
            f"JOIN process p ON p.process_id = l.engine_id WHERE p.pid = {told['pid']} GROUP BY r.session",
            format="arrow",
        ).to_pylist()
        assert {row["session"]: row["hit"] for row in rows} == told["cached"]


def test_groups_of_a_window_and_of_states_give_back_blocks_that_full_attention_keeps(recorded: Recorded) -> None:
    names = {told["pid"]: name for name, told in recorded.truth.items()}
    engines = recorded.trace.sql("SELECT process_id, pid FROM process", format="arrow").to_pylist()
    name_of = {row["process_id"]: names[row["pid"]] for row in engines}
    rows = recorded.trace.query("kv-groups", format="arrow").to_pylist()
    groups = {(name_of[row["engine_id"]], row["kv_group"]): row for row in rows}
    assert {key: row["kind"] for key, row in groups.items() if key[0] in ("plain", "window", "state")} == {
        ("plain", 0): "full",
        ("window", 0): "full",
        ("window", 1): "window",
        ("state", 0): "state",
        ("state", 1): "full",
    }
    for (engine, _), row in groups.items():
        assert (row["retired_blocks"] > 0) == (row["kind"] != "full"), engine
        assert (row["wasted_tokens"] is None) == (row["kind"] == "state")
    assert 0 < groups["window", 1]["mean_used_blocks"] < groups["window", 0]["mean_used_blocks"]


def test_every_change_of_a_block_belongs_to_a_group(recorded: Recorded) -> None:
    [row] = recorded.trace.sql(
        "SELECT count(*) FILTER (op = 'allocate') AS allocated, count(*) FILTER (op = 'hit') AS hits, "
        "count(*) FILTER (op = 'evict') AS evicted FROM block_event",
        format="arrow",
    ).to_pylist()
    groups = recorded.trace.query("kv-groups", format="arrow").to_pylist()
    found = {name: sum(group[f"{name}_blocks"] for group in groups) for name in ("allocated", "evicted")}
    assert found == {name: row[name] for name in found}
    assert sum(group["hit_blocks"] for group in groups) == row["hits"] > 0


def test_answers_are_those_of_vllms_cache_manager_with_any_groups(warm_python: list[str], tmp_path: Path) -> None:
    script = [*warm_python, str(HERE / "group_answers.py"), "1", str(tmp_path)]
    done = subprocess.run(script, env=vllm_environment(), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
