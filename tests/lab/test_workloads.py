"""Promises of workloads: the same every time, the lengths and shares they are named for, repeats only where wanted."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.errors import KvtraceError
from kvtrace.lab.workloads import KINDS, make
from kvtrace.lab.workloads.agents import TOOL_MIX

SYNTHETIC: dict[str, dict[str, Any]] = {
    "fixed": {"jobs": 5, "prompt": 40, "output": 3},
    "listed": {"lengths": [[40, 3], [1, 1], [12, 5]]},
    "zipf": {"jobs": 5, "shortest": 10, "longest": 60},
    "sharegpt-like": {"jobs": 5},
    "shared-prefix": {"families": 2, "members": 2, "size": 64},
    "evict-pair": {"evicted": 64, "pool": 512, "rounds": 2},
    "agent": {"jobs": 3, "scale": 0.05},
    "eight-turns": {"jobs": 3, "prompt": 32},
}
FILES = {"sharegpt", "trajectories", "mooncake", "bailian"}


def test_every_kind_is_tested() -> None:
    assert set(SYNTHETIC) | FILES == set(KINDS)


@pytest.mark.parametrize("kind", SYNTHETIC)
@settings(max_examples=10)
@given(seed=st.integers(0, 1 << 40), arrival=st.sampled_from(["all", "batch", "poisson", "closed"]))
def test_a_workload_follows_from_its_seed(kind: str, seed: int, arrival: str) -> None:
    def made(seed: int) -> Any:
        rates = {"rate": 3.0} if arrival == "poisson" else {"concurrency": 2} if arrival == "closed" else {}
        return make("w", {"kind": kind, "seed": seed, "arrival": arrival, **rates, **SYNTHETIC[kind]})

    one, same, other = made(seed), made(seed), made(seed + 1)
    assert one == same
    assert one.describe() == same.describe()
    assert one.digest() != other.digest()
    assert json.loads(json.dumps(one.describe())) == one.describe()


def test_the_digest_sees_tokens_times_and_tools() -> None:
    def digest(**more: Any) -> str:
        return make("w", {"kind": "eight-turns", "jobs": 2, "prompt": 20, "rate": 1.0, **more}).digest()

    assert digest() == digest()
    assert len({digest(), digest(tool_s=0.6), digest(output=21), digest(rate=1.5), digest(seed=2), digest(jobs=3)}) == 6
    assert digest(arrival="all") != digest(arrival="batch")


def test_listed_requests_have_their_lengths_in_order() -> None:
    made = make("w", {"kind": "listed", "lengths": [[40, 3], [1, 1], [40, 5]]})
    assert [(len(job.turns[0].new), job.turns[0].output_tokens) for job in made.jobs] == [(40, 3), (1, 1), (40, 5)]
    assert made.jobs[0].turns[0].new != made.jobs[2].turns[0].new


def test_poisson_arrivals_have_their_rate() -> None:
    arrivals = make("w", {"kind": "fixed", "jobs": 4000, "prompt": 1, "rate": 2.0}).arrivals_s or []
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    assert arrivals[0] == 0
    assert statistics.mean(gaps) == pytest.approx(0.5, rel=0.05)
    assert statistics.pstdev(gaps) == pytest.approx(0.5, rel=0.08)  # exponential: as wide as its mean


def test_zipf_lengths_have_their_range_law_and_ratio() -> None:
    made = make("w", {"kind": "zipf", "jobs": 6000, "shortest": 100, "longest": 1000, "theta": 1.0, "ratio": 4.0})
    pairs = [(len(job.turns[0].new), job.turns[0].output_tokens) for job in made.jobs]
    totals = [prompt + output for prompt, output in pairs]
    assert (min(totals), max(totals)) >= (100, 0)
    assert max(totals) <= 1000
    assert sum(prompt for prompt, _ in pairs) / sum(output for _, output in pairs) == pytest.approx(4.0, rel=0.02)
    # the ranks are 1 to 901: half of the harmonic sum H(901) = 7.381 is reached at rank 22.5
    assert sum(total - 99 <= 22 for total in totals) / 6000 == pytest.approx(0.5, abs=0.03)


def test_sharegpt_like_lengths_have_sharegpts_means() -> None:
    described = make("w", {"kind": "sharegpt-like", "jobs": 4000}).describe()
    assert described["prompt_tokens"]["mean"] == pytest.approx(161.31, rel=0.1)
    assert described["output_tokens"]["mean"] == pytest.approx(337.99, rel=0.1)
    assert described["prompt_tokens"]["median"] < 120  # a long tail


def test_agents_have_the_measured_turns_lengths_and_tools() -> None:
    made = make("w", {"kind": "agent", "jobs": 600, "longest": 10**6})
    described = made.describe()
    assert described["turns_a_job"]["mean"] == pytest.approx(17.9, rel=0.06)
    assert described["prompt_tokens"]["median"] == pytest.approx(6945, rel=0.08)
    assert described["output_tokens"]["median"] == pytest.approx(30, abs=2)
    calls = sum(described["tools"].values())
    assert calls == described["requests"]
    assert {tool: described["tools"][tool] / calls for tool in TOOL_MIX} == pytest.approx(TOOL_MIX, abs=0.015)
    assert all((job.turns[-1].tool, job.turns[-1].tool_s) == ("submit", 0.0) for job in made.jobs)


def test_agents_contexts_grow_and_stop_before_the_longest() -> None:
    made = make("w", {"kind": "agent", "jobs": 60, "longest": 9000, "tool_s": 0.25})
    assert made.longest_tokens <= 9000
    assert {turn.tool_s for job in made.jobs for turn in job.turns[:-1]} == {0.25}
    assert all(turn.new for job in made.jobs for turn in job.turns)


def test_eight_turns_add_about_2k_tokens_each() -> None:
    made = make("w", {"kind": "eight-turns", "jobs": 40})
    assert {len(job.turns) for job in made.jobs} == {8}
    assert made.describe()["new_tokens"]["mean"] == pytest.approx(2048, rel=0.02)
    assert made.describe()["tool_s"] == {"sum": 140.0, "mean": 0.5, "median": 0.5, "min": 0.5, "max": 0.5}


def test_turns_may_have_lengths_of_their_own() -> None:
    made = make("w", {"kind": "eight-turns", "jobs": 2, "turns": 3, "prompt": [92, 1728, 840]})
    assert [[len(turn.new) for turn in job.turns] for job in made.jobs] == [[92, 1728, 840]] * 2
    assert made.jobs[0].turns[1].new != made.jobs[1].turns[1].new


@settings(max_examples=20)
@given(families=st.integers(1, 5), members=st.integers(1, 5), size=st.integers(40, 90), share=st.floats(0.1, 0.9))
def test_families_share_a_prefix_and_never_a_prompt(families: int, members: int, size: int, share: float) -> None:
    given_ = {"kind": "shared-prefix", "families": families, "members": members, "size": size, "share": share}
    shared, unique = make("w", given_), make("w", {**given_, "unique": True})
    prompts = {job.session: tuple(job.turns[0].new) for job in shared.jobs}
    assert len(set(prompts.values())) == families * members
    common = round(size * share)
    beginnings = Counter(prompt[:common] for prompt in prompts.values())
    assert sorted(beginnings.values()) == [members] * families
    # matched: the same lengths and sessions in the same order, and nothing in common
    assert [job.session for job in unique.jobs] == [job.session for job in shared.jobs]
    assert list(unique.prompt_tokens()) == list(shared.prompt_tokens())
    assert len({tuple(job.turns[0].new[:4]) for job in unique.jobs}) == families * members


def test_an_evicted_request_comes_again_after_one_that_fills_the_pool() -> None:
    made = make("w", {"kind": "evict-pair", "evicted": 96, "pool": 640, "rounds": 2})
    assert (made.arrivals_s, made.concurrency) == (None, 1)
    assert [(job.session, job.first_turn, len(job.turns[0].new)) for job in made.jobs] == [
        ("evicted-0", 0, 96),
        ("evictor-0", 0, 639),
        ("evicted-0", 1, 97),
        ("evicted-1", 0, 96),
        ("evictor-1", 0, 639),
        ("evicted-1", 1, 97),
    ]
    assert made.jobs[2].turns[0].new[:96] == made.jobs[0].turns[0].new
    assert made.jobs[0].turns[0].new != made.jobs[3].turns[0].new


def test_a_preempting_pair_overflows_the_pool_by_growing() -> None:
    made = make("w", {"kind": "evict-pair", "evicted": 96, "pool": 640, "mode": "preempt", "arrival": "all"})
    prompts = [len(job.turns[0].new) for job in made.jobs]
    outputs = [job.turns[0].output_tokens for job in made.jobs]
    assert prompts == [512, 96]
    assert sum(prompts) < 640 < sum(prompts) + sum(outputs)


def write(path: Path, *lines: Any) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_trajectories_become_turns_with_their_tools_and_answers(tmp_path: Path) -> None:
    call = {"function": {"name": "bash", "arguments": '{"command": "grep -rn x ."}'}}
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "fix it"},
        {"role": "assistant", "content": "looking", "tool_calls": [call]},
        {"role": "tool", "content": "x = 1"},
        {"role": "assistant", "content": "<function=str_replace_editor><parameter=command>view</parameter></function>"},
        {"role": "user", "content": [{"type": "text", "text": "done?"}]},
        {"role": "assistant", "content": "done"},
    ]
    path = write(tmp_path / "t.jsonl", {"instance_id": "a", "messages": json.dumps(messages)}, {"messages": []})
    made = make("w", {"kind": "trajectories", "path": path, "tool_scale": 0.5})
    (job,) = made.jobs
    assert [(turn.tool, turn.tool_s) for turn in job.turns] == [("grep", 0.3), ("editor_view", 0.1), ("", 0.0)]
    assert all(turn.answer is not None and len(turn.answer) == turn.output_tokens for turn in job.turns)
    assert len(job.turns[2].answer or ()) == 1  # "done": four characters
    assert any("4 characters a token" in note for note in made.notes)
    assert any("1 conversations without an answer" in note for note in made.notes)


def test_texts_that_begin_alike_have_tokens_that_begin_alike(tmp_path: Path) -> None:
    def chat(text: str) -> dict[str, Any]:
        return {"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": "yes"}]}

    path = tmp_path / "s.json"
    path.write_text(json.dumps([chat("what is paging in an operating system"), chat("what is paging in a book")]))
    made = make("w", {"kind": "sharegpt", "path": str(path)})
    one, two = (job.turns[0].new for job in made.jobs)
    assert one[:6] == two[:6]
    assert one[9:] != two[9:]


def test_a_mooncake_trace_keeps_times_lengths_and_shared_blocks(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 27_000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 30_500, "input_length": 1024, "output_length": 7, "hash_ids": [1, 2]},
        {"timestamp": 31_000, "input_length": 600, "output_length": 0, "hash_ids": [9, 2]},
    ]
    made = make("w", {"kind": "mooncake", "path": write(tmp_path / "m.jsonl", *lines), "speed": 2.0, "longest": 1060})
    assert made.arrivals_s == [0.0, 1.75, 2.0]
    assert list(made.prompt_tokens()) == [1055, 1024, 600]
    first, second, third = (job.turns[0].new for job in made.jobs)
    assert first[:1024] == second
    assert third[512:] == second[512:600]
    assert third[:16] != second[:16]
    assert [job.turns[0].output_tokens for job in made.jobs] == [5, 7, 1]
    assert made.notes == ["1 prompts were cut to 1060 tokens less their output"]


def test_a_mooncake_request_that_begins_with_anothers_prompt_is_a_later_turn_of_its_session(tmp_path: Path) -> None:
    def line(at: int, tokens: int, *hashes: int) -> dict[str, int | tuple[int, ...]]:
        return {"timestamp": at, "input_length": tokens, "output_length": 5, "hash_ids": hashes}

    lines = [
        line(0, 1100, 0, 1, 2),  # full blocks: 0 (everybody's), 1
        line(1000, 1100, 0, 3, 4),  # only everybody's in common
        line(2000, 1700, 0, 1, 5, 6),
        line(3000, 1100, 0, 1, 7),  # the first one's prompt again: it goes on from the latest to end so, the first
        line(4000, 2048, 0, 1, 5, 8),
        line(5000, 500, 9),  # no full block
        line(6000, 600, 0, 10),  # its only full block is everybody's
        line(7000, 1600, 0, 3, 4, 11),
    ]
    path = write(tmp_path / "m.jsonl", *lines)
    made = make("w", {"kind": "mooncake", "path": path, "sessions": True})
    assert [(job.session, job.first_turn) for job in made.jobs] == [
        ("chat-0", 0),
        ("chat-1", 0),
        ("chat-0", 1),
        ("chat-3", 1),
        ("chat-0", 2),
        ("chat-5", 0),
        ("chat-6", 0),
        ("chat-1", 1),
    ]
    assert made.notes == ["4 of 8 requests are later turns of a session: derived from equal prefixes"]
    half = make("w", {"kind": "mooncake", "path": path, "sessions": True, "every": 2, "jobs": 4})
    assert [(job.session, job.first_turn) for job in half.jobs] == [
        ("chat-0", 0),
        ("chat-0", 1),
        ("chat-3", 1),
        ("chat-0", 2),
    ]
    assert half.arrivals_s == [0.0, 2.0, 3.0, 4.0]
    alone = make("w", {"kind": "mooncake", "path": path})
    assert {job.first_turn for job in alone.jobs} == {0}
    assert [job.turns for job in alone.jobs] == [job.turns for job in made.jobs]


def test_a_bailian_chat_that_goes_on_is_a_later_turn(tmp_path: Path) -> None:
    def line(chat: int, parent: int, at: float, *hashes: int) -> dict[str, Any]:
        lengths = {"input_length": 16 * len(hashes), "output_length": 4}
        return {"chat_id": chat, "parent_chat_id": parent, "timestamp": at, "hash_ids": hashes, **lengths}

    chats = [line(0, -1, 1.0, 1), line(5, 0, 3.5, 1, 2), line(6, 5, 4.0, 1, 2, 3), line(8, 5, 7.0, 1, 2, 4)]
    path = write(tmp_path / "b.jsonl", *chats, line(7, -1, 9, 4))
    made = make("w", {"kind": "bailian", "path": path})
    assert [(job.session, job.first_turn) for job in made.jobs] == [
        ("chat-0", 0),
        ("chat-0", 1),
        ("chat-0", 2),
        ("chat-8", 2),  # chat 5 was continued twice
        ("chat-7", 0),
    ]
    assert made.arrivals_s == [0.0, 2.5, 3.0, 6.0, 8.0]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kind": "nothing"}, "no workload 'nothing'; there are fixed, listed"),
        ({"kind": "fixed", "inputs": 3}, "fixed has no parameter inputs; it has jobs, prompt"),
        ({"kind": "mooncake"}, "mooncake needs path"),
        ({"kind": "mooncake", "path": "m.jsonl", "every": 2}, "needs sessions = true"),
        ({"kind": "fixed", "arrival": "poisson"}, "needs rate"),
        ({"kind": "fixed", "arrival": "recorded"}, "recorded times"),
        ({"kind": "fixed", "jobs": 0}, "no jobs"),
        ({"kind": "listed", "lengths": [[4, 1], [4]]}, r"expected prompt and output tokens, found \[4\]"),
        ({"kind": "listed", "lengths": [[4, 0]]}, r"expected prompt and output tokens, found \[4, 0\]"),
        ({"kind": "listed", "lengths": [3]}, "cannot be made of"),
        ({"kind": "eight-turns", "prompt": [92, 5]}, r"expected 8 lengths of at least 1, found \[92, 5\]"),
        ({"kind": "eight-turns", "turns": 2, "prompt": [92, 0]}, "expected 2 lengths of at least 1"),
        ({"kind": "evict-pair", "evicted": 100, "pool": 200}, "has to hold evicted"),
        ({"kind": "sharegpt", "path": "/nonexistent"}, "does not exist"),
    ],
)
def test_what_cannot_be_made_is_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(KvtraceError, match=message):
        make("w", parameters)
