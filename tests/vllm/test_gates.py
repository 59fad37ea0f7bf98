"""Each rule that cuts a prefix hit, on engines and workloads that are built to lose tokens to it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvtrace.lab.replay import timing
from kvtrace.lab.replay.loops import Loop
from kvtrace.lab.replay.recording import read_recording
from kvtrace.lab.replay.run import Job, Replayed, replay
from kvtrace.lab.replay.settings import changed_settings, recorded_settings
from kvtrace.queries import Trace
from tests.vllm.conftest import ENGINE, HERE, Recorded, ingested, kvtrace, vllm_environment
from tests.vllm.hybrids import WINDOWS, draft_model, state_model
from tests.vllm.reproduction import check_all

BLOCK = 32
BIG = {**ENGINE, "num_gpu_blocks_override": 96}
LONG, TURN, OTHER, FILLER = 11, 12, 13, 14
CASES: dict[str, list[list[int]]] = {
    "first": [[LONG, 300]],
    "again": [[LONG, 300]],
    "whole": [[OTHER, 96]],
    "whole-again": [[OTHER, 96]],
    "branch": [[LONG, 200], [TURN, 60]],
    "branch-again": [[LONG, 200], [TURN, 60]],
}

ODD = {"odd": [[LONG + 10, 310]], "odd-again": [[LONG + 10, 310]]}
SUPPLIED_TOKENS = 32
SUPPLIED = {"early-supplied": [[LONG, 100], [TURN + 20, 60]]}
"""The connector of that engine supplies tokens beyond full attention's hit, and with them the state that is missing."""


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
        "fine": {**state, "prefix_match_unit": 16},  # hits may end inside a block
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
    options["connector"] = {
        **state,
        "kv_transfer_config": {
            "kv_connector": "StateConnector",
            "kv_connector_module_path": "state_connector",
            "kv_role": "kv_both",
        },
    }
    evicting = {"filler": [[FILLER, 480]], "filler-2": [[FILLER + 1, 480]], "evicted": [[LONG, 300]]}
    options["ngram"] = {
        "speculative_config": {
            "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1,
        },
    }  # fmt: skip
    more_cases: dict[str, Any] = {"plain": evicting, "window": evicting, "connector": SUPPLIED, "fine": ODD}
    engines: dict[str, Any] = {
        name: {"options": {**BIG, **more}, "cases": CASES | more_cases.get(name, {})} for name, more in options.items()
    }
    engines["window"]["crowd"] = [[1000, 480], [1001, 480], [1002, 480]]  # more than its blocks hold
    engines["state"]["crowd"] = [[1000, 100]] * 3
    engines["ngram"]["max_tokens"] = 24
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
        "JOIN process p ON p.process_id = l.engine_id JOIN request r USING (request) "
        "WHERE r.session IS NOT NULL ORDER BY l.time_ns, l.place",
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
    ("window", "evicted"): [("partial_block", None, 12, 0), ("absent", 0, 160, 160), ("window_gap", 1, 128, 128)],
    ("window", "branch-again"): [("partial_block", None, 4, 0)],
    ("retained", "branch"): [("partial_block", None, 4, 0), ("absent", 0, 64, 0)],
    ("state", "again"): [("partial_block", None, 12, 0)],
    ("state", "branch"): [("partial_block", None, 4, 0), ("absent", 1, 64, 0), ("no_state", 0, 192, 192)],
    ("fine", "whole-again"): [("last_token", None, BLOCK // 2, BLOCK // 2)],
    ("fine", "odd-again"): [("partial_block", None, 6, 0)],
    ("state", "branch-again"): [("partial_block", None, 4, 0)],
    ("connector", "branch"): [("partial_block", None, 4, 0), ("absent", 1, 64, 0), ("no_state", 0, 192, 192)],
    ("connector", "early-supplied"): [("last_token", None, BLOCK, 0), ("absent", 1, BLOCK, BLOCK)],
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
"""Apart from `all` and the window that was evicted, all tokens that an earlier request had are lost to one rule."""


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
        name: name not in ("plain", "ngram") for name in recorded.truth
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


def test_hits_add_up_to_vllms_count_by_source(recorded: Recorded) -> None:
    if not any(told["by_source"] for told in recorded.truth.values()):
        pytest.skip("this vLLM does not count by source: 0.32 was the first")
    for name, told in recorded.truth.items():
        [row] = recorded.trace.sql(
            "SELECT sum(local_hit_tokens)::BIGINT AS local, coalesce(sum(external_hit_tokens), 0)::BIGINT AS external "
            "FROM prefix_lookup JOIN process ON process_id = engine_id "
            f"WHERE pid = {told['pid']} AND admitted AND NOT resumed",
            format="arrow",
        ).to_pylist()
        by_source = dict(told["by_source"])
        assert row["local"] == by_source.pop("device"), name
        assert row["external"] == sum(by_source.values()), name
        assert (row["external"] > 0) == (name == "connector")


def test_a_connector_that_supplies_states_lets_full_attention_decide(recorded: Recorded) -> None:
    """The scheduler takes full attention's hit, though the other group has no state there: the connector brings it."""
    rows = recorded.trace.sql(
        "SELECT g.kind::VARCHAR AS kind, g.hit_tokens, g.own_tokens, l.local_hit_tokens, l.external_hit_tokens "
        "FROM group_lookup g JOIN prefix_lookup l USING (engine_id, request, time_ns) JOIN request r USING (request) "
        "WHERE r.session = 'early-supplied' ORDER BY g.place",
        format="arrow",
    ).to_pylist()
    same = {"hit_tokens": 96, "local_hit_tokens": 96, "external_hit_tokens": 32}
    assert rows == [{"kind": "full", "own_tokens": 96, **same}, {"kind": "state", "own_tokens": 0, **same}]


def test_a_refused_admission_says_what_it_asked_for_of_each_group(recorded: Recorded) -> None:
    rows = recorded.trace.sql(
        "SELECT s.limit_need_blocks AS need, list(g.need_blocks ORDER BY g.kv_group) AS groups "
        "FROM step_schedule s JOIN refusal_group g ON g.engine_id = s.engine_id AND g.step = s.step "
        "AND g.request = s.limit_request WHERE s.admission_limit = 'kv_insufficient' "
        "GROUP BY s.engine_id, s.step, need",
        format="arrow",
    ).to_pylist()
    assert rows
    for row in rows:
        full, window = row["groups"]
        assert full + window == row["need"]
        # 480 tokens are 15 blocks; of a window of 64 tokens no more are held at a time than with a batch of 256 (docs).
        assert (full, window) == (15, 11)


def test_a_request_whose_state_is_stored_in_the_same_step_waits_for_the_next_and_not_for_blocks(
    recorded: Recorded,
) -> None:
    rows = recorded.trace.sql(
        "SELECT pid, limit_need_blocks AS need FROM step_schedule JOIN process ON process_id = engine_id "
        "WHERE admission_limit = 'state_pending'",
        format="arrow",
    ).to_pylist()
    assert {(row["pid"], row["need"]) for row in rows} == {(recorded.truth["state"]["pid"], None)}


def test_drafts_are_those_that_vllm_counts(recorded: Recorded) -> None:
    for name, told in recorded.truth.items():
        [row] = recorded.trace.sql(
            "SELECT count(d.engine_id) AS drafts, "
            "coalesce(sum(drafted_tokens - invalid_tokens), 0)::BIGINT AS drafted, "
            "coalesce(sum(accepted_tokens), 0)::BIGINT AS accepted FROM process LEFT JOIN draft d "
            f"ON engine_id = process_id WHERE pid = {told['pid']}",
            format="arrow",
        ).to_pylist()
        counted = [
            told["counters"].get(f"vllm:spec_decode_num_{what}", 0)
            for what in ("drafts", "draft_tokens", "accepted_tokens")
        ]
        assert list(row.values()) == counted, name
        assert (row["drafts"] > 0) == (name in ("ngram", "eagle", "alignment", "all")), name


def test_what_is_lost_lies_behind_what_vllm_told_the_client(recorded: Recorded) -> None:
    for told in recorded.truth.values():
        rows = recorded.trace.sql(
            "SELECT r.session, min(l.start_tokens) AS hit FROM prefix_loss l JOIN request r USING (request) "
            f"JOIN process p ON p.process_id = l.engine_id WHERE p.pid = {told['pid']} AND r.session IS NOT NULL "
            "GROUP BY r.session",
            format="arrow",
        ).to_pylist()
        cached = {case: hit - SUPPLIED_TOKENS * case.endswith("-supplied") for case, hit in told["cached"].items()}
        assert {row["session"]: row["hit"] for row in rows} == cached


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
        assert (row["wasted_tokens"] is None) == (row["kind"] == "state" or engine in ("plain", "eagle", "ngram"))
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


def _engine_of(recorded: Recorded, name: str) -> int:
    rows = recorded.trace.sql("FROM process", format="arrow").to_pylist()
    [engine] = [row["process_id"] for row in rows if row["pid"] == recorded.truth[name]["pid"]]
    return int(engine)


@pytest.mark.usefixtures("warm_replays")
def test_hybrids_and_speculation_are_repeated(recorded: Recorded, tmp_path: Path) -> None:
    """Windows, states, blocks of several sizes; drafts however they were made, and what the model accepted of them."""
    trace = recorded.run / "trace.duckdb"
    drafted = "SELECT step, drafted_tokens, accepted_tokens FROM draft WHERE engine_id = {} ORDER BY step"
    engines = {name: _engine_of(recorded, name) for name in recorded.truth if name != "connector"}
    check_all({name: (trace, number) for name, number in engines.items()}, tmp_path)
    for name, number in engines.items():
        with Trace(tmp_path / f"repeated {name}" / "again.duckdb") as again:
            [replayed] = [row["engine_id"] for row in again.sql("FROM engine", format="arrow").to_pylist()]
            rows = again.sql(drafted.format(replayed), format="arrow").to_pylist()
        assert rows == recorded.trace.sql(drafted.format(number), format="arrow").to_pylist(), name
        assert bool(rows) == (name in ("ngram", "eagle", "alignment", "all")), name


@pytest.mark.usefixtures("warm_replays")
def test_what_speculation_gains_can_be_asked(recorded: Recorded, tmp_path: Path) -> None:
    """Fewer drafts need more steps for the same tokens, none at all one for each."""
    recording = read_recording(recorded.run / "trace.duckdb", _engine_of(recorded, "ngram"))
    settings, model = recorded_settings(recording.engine), timing.fit(recording.steps)
    jobs = [
        Job(
            str(most), changed_settings(recording.engine, settings, [f"num_speculative_tokens={most}"]), model,
            Loop("batch"), tmp_path / "none", figures_only=True,
        )
        for most in (3, 1, 0)
    ]  # fmt: skip
    steps, outputs = [], set()
    for done in replay(recording, jobs):
        assert isinstance(done, Replayed), done
        steps.append(done.outcome.steps)
        outputs.add(done.outcome.output_tokens)
    assert len(outputs) == 1
    assert steps == sorted(set(steps))
    # Requests came one after the other, so that without drafts each token but a prompt's first takes a step.
    prefills = sum(step.prefill_tokens > 0 for step in recording.steps)
    alone = prefills + sum(request.output_tokens - 1 for request in recording.requests)
    assert steps[2] - steps[0] == alone - len(recording.steps) > 0
