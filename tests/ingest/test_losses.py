"""Tokens that lookups did not find, by rule, on traces of a few events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.ingest.derive.misses import insert_misses

from .traces import Events


def losses(trace: Events, columns: str = "rule, kv_group, start_tokens, lost_tokens") -> list[tuple[Any, ...]]:
    insert_misses(trace.connection)
    return trace.rows(f"SELECT {columns} FROM prefix_loss ORDER BY time_ns, place")


def answer(trace: Events, at: int, place: int, **values: Any) -> None:
    """An answer of group 0, of blocks of 16 tokens, that no rule shortened unless told otherwise."""
    hit = values["hit_tokens"]
    same = {"stored_tokens": hit, "kept_tokens": hit, "own_tokens": hit, "unit_tokens": 16, "alignment_tokens": 16}
    group = {"kv_group": 0, "kv_groups": 1, "kind": "full", "eagle": False}
    trace.add("group_lookup", engine_id=1, time_ns=at, step=at, request=1, place=place, **{**same, **group, **values})


@pytest.fixture
def events() -> Events:
    trace = Events()
    trace.request(1, "ada")
    return trace


def test_without_answers_of_groups_only_blocks_limit_a_hit(events: Events) -> None:
    events.lookup(10, 1, 60, 16)
    events.lookup(20, 1, 64, 48)
    events.lookup(30, 1, 50, enabled=False)
    assert losses(events) == [
        ("partial_block", None, 48, 12),
        ("absent", 0, 16, 32),
        ("last_token", None, 48, 16),
    ]


@pytest.mark.parametrize(
    "facts",
    [
        {"kv_groups": 2},
        {"settings": json.dumps({"speculative": {"method": "eagle3"}})},
        {"settings": json.dumps({"kv_cache_groups": [{"kind": "SlidingWindowSpec"}]})},
    ],
    ids=str,
)
def test_where_groups_have_rules_and_did_not_answer_the_rule_is_unknown(events: Events, facts: dict[str, Any]) -> None:
    [(name, value)] = facts.items()
    events.connection.execute(f"UPDATE engine SET {name} = ?", [value])
    events.lookup(10, 1, 60, 16)
    assert losses(events)[1:] == [("unknown", None, 16, 32)]


def test_settings_that_are_no_json_tell_nothing(events: Events) -> None:
    events.connection.execute("UPDATE engine SET settings = '{'")
    events.lookup(10, 1, 60, 16)
    assert losses(events)[1:] == [("absent", 0, 16, 32)]


def test_a_limit_that_the_scheduler_sets(events: Events) -> None:
    events.lookup(10, 1, 64, 16, cap_tokens=30)
    assert losses(events) == [("last_token", None, 48, 16), ("cap", None, 16, 32)]


@pytest.mark.parametrize("answered", [False, True])
def test_a_block_whose_hash_covers_tokens_that_are_not_there_cannot_be_found(events: Events, answered: bool) -> None:
    # GIVEN hashes that cover three tokens behind their block, as with three MTP modules in vLLM 0.33
    events.connection.execute("UPDATE engine SET settings = ?", [json.dumps({"hash_lookahead_tokens": 3})])
    # WHEN a request of 66 tokens finds 32: its fourth block ends at 64, and 67 would be needed
    events.lookup(10, 1, 66, 32)
    if answered:
        answer(events, 10, 0, bound_tokens=65, hit_tokens=32)
    assert losses(events) == [
        ("partial_block", None, 64, 2),
        ("lookahead", None, 48, 16),
        ("absent", 0, 32, 16),
    ]


def test_a_hit_that_the_scheduler_drops_is_no_loss_of_a_group(events: Events) -> None:
    events.connection.execute("UPDATE engine SET kv_groups = 2")
    events.lookup(10, 1, 60, 0)
    answer(events, 10, 0, bound_tokens=59, hit_tokens=48)
    answer(events, 10, 1, bound_tokens=48, hit_tokens=32, kv_group=1, kind="window")
    assert losses(events)[1:] == [("window_gap", 1, 32, 16), ("dropped", None, 0, 32)]


def test_each_group_is_charged_with_what_it_takes_off(events: Events) -> None:
    # GIVEN blocks of 16 and 32 tokens, a draft model, a window without its blocks and a state that is not there
    events.connection.execute("UPDATE engine SET kv_groups = 4")
    events.lookup(10, 1, 200, 0)
    wide = {"alignment_tokens": 32, "eagle": True}
    answer(events, 10, 0, bound_tokens=199, hit_tokens=128, stored_tokens=176, kept_tokens=160, **wide)
    answer(events, 10, 1, bound_tokens=128, hit_tokens=64, kv_group=1, kv_groups=2, kind="window", **wide)
    answer(events, 10, 2, bound_tokens=64, hit_tokens=0, kv_group=3, kind="state", **wide)
    assert losses(events) == [
        ("partial_block", None, 192, 8),
        ("absent", 0, 176, 16),
        ("eagle_drop", 0, 160, 16),
        ("alignment", 0, 128, 32),
        ("window_gap", 1, 64, 64),
        ("no_state", 3, 0, 64),
    ]
    # AND the last of them is what ended the hit
    assert events.rows("SELECT gate_rule, gate_group, gate_tokens FROM prefix_miss") == [("no_state", 3, 64)]


def test_alignment_counts_before_blocks_that_could_not_help(events: Events) -> None:
    events.lookup(10, 1, 60, 32)
    answer(events, 10, 0, bound_tokens=59, hit_tokens=32, alignment_tokens=32)
    assert losses(events)[1:] == [("alignment", 0, 32, 16)]


def test_an_answer_that_was_not_completed_keeps_its_length(events: Events) -> None:
    events.lookup(10, 1, 64, 16)
    answer(events, 10, 0, bound_tokens=63, hit_tokens=16, stored_tokens=None, kept_tokens=None, eagle=True)
    assert losses(events)[1:] == [("unknown", 0, 16, 32)]


def test_what_a_connector_supplied_was_lost_and_not_computed(events: Events) -> None:
    events.add("cost_model", engine_id=1, composition="all", used=True, ns_per_token=10.0, ns_per_token_context=2.0)
    events.lookup(10, 1, 60, 16, external_hit_tokens=16)
    assert losses(events, "rule, lost_tokens, computed_tokens, compute_ns") == [
        ("partial_block", 12, 12, 12 * 10 + 2 * (12 * 48 + 12 * 13 // 2)),
        ("absent", 32, 16, 16 * 10 + 2 * (16 * 32 + 16 * 17 // 2)),
    ]


def test_tokens_that_an_earlier_request_had_are_told_from_new_ones(events: Events) -> None:
    events.lookup(10, 1, 50, chain=(101, 102, 103))
    events.store(20, 1, 101, 102)
    events.block(30, "evict", 1, 101, 3)
    events.lookup(50, 1, 50, chain=(101, 102, 203))
    assert losses(events, "rule, lost_tokens, known_tokens")[-1] == ("absent", 48, 32)


def test_a_block_in_one_group_alone_was_there_and_not_used(events: Events) -> None:
    events.request(2, "ben")
    events.lookup(10, 1, 50, chain=(101, 102, 103))
    events.store(20, 1, 101, 102, 103)
    events.store(20, 1, 103, kv_group=1, first_block=7)
    events.block(30, "evict", 7, 103, 1, kv_group=1)
    events.lookup(50, 2, 50, 0, chain=(101, 102, 103))
    insert_misses(events.connection)
    [(verdict,)] = events.rows("SELECT verdict FROM prefix_miss WHERE request = 2")
    assert verdict == "not_used"


@settings(max_examples=60)
@given(st.data())
def test_whatever_groups_answer_the_losses_add_up_to_what_was_not_found(data: st.DataObject) -> None:
    events = Events()
    queried = data.draw(st.integers(1, 200))
    bound, answers = queried - 1, []
    for _ in range(data.draw(st.integers(1, 4))):
        alignment = data.draw(st.sampled_from([16, 32, 64]))
        hit = data.draw(st.integers(0, bound)) // alignment * alignment
        kept = hit + data.draw(st.integers(0, 64))
        told = {"stored_tokens": kept + data.draw(st.integers(0, 64)), "kept_tokens": kept}
        told = data.draw(st.sampled_from([told, {"stored_tokens": None, "kept_tokens": None}, {}]))
        kind = data.draw(st.sampled_from(["full", "window", "state", "chunk", "other"]))
        answers.append({"bound_tokens": bound, "hit_tokens": hit, "alignment_tokens": alignment, "kind": kind, **told})
        bound = hit
    events.lookup(10, 1, queried, bound)
    for place, values in enumerate(answers):
        answer(events, 10, place, kv_group=place, **values)
    found = losses(events, "start_tokens, lost_tokens")
    assert sum(lost for _, lost in found) == queried - bound
    ends = [start + lost for start, lost in found]
    assert ends == [queried, *(start for start, _ in found[:-1])], "from the request's end down to its hit"
