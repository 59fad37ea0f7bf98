"""`kvtrace explain`: any id that a user may hold, and the panel of what it names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtrace.errors import KvtraceError
from kvtrace.queries import Trace
from kvtrace.queries.explain import Section, explain
from kvtrace.queries.identify import Subject, identify

from .conftest import MakeTrace
from .test_cli import kvtrace

TRACE = """
    INSERT INTO run VALUES ('started_ns', '1000000000');
    INSERT INTO engine (engine_id, model) VALUES (1, 'm');
    INSERT INTO request (engine_id, request, internal_id, external_id, session, turn, arrival_ns, queued_ns,
        scheduled_ns,
        first_token_ns, finished_ns, output_tokens, prompt_tokens, preemptions, finish_reason)
    VALUES
        (1, 1, 'cmpl-aa-0-11', 'cmpl-aa-0', 'chat', 0, 2000000000, 2001000000, 2101000000, 2201000000, 2601000000,
            5, 64,
         1, 'stop'),
        (1, 2, 'cmpl-ab-0-22', 'cmpl-ab-0', 'chat', 1, 2000000000, 2001000000, 2101000000, 2301000000, 2401000000,
            2, 64,
         0, 'stop'),
        (1, 3, '0_cmpl-c-0-33', NULL, 'draw', NULL, 2700000000, 2700000000, 2701000000, 2801000000, 2901000000, 2,
            64, 0,
         'length'),
        (1, 4, '1_cmpl-c-0-33', NULL, 'paint', NULL, 2700000000, 2700000000, 2701000000, 2801000000, 2901000000,
            2, 64, 0,
         'length');
    UPDATE request SET tenant = 'acme', lora = 'sql' WHERE request = 1;
    INSERT INTO request_event (engine_id, time_ns, step, request, op, computed_tokens, blocks) VALUES
        (1, 2101000000, 3, 1, 'schedule', 0, 4), (1, 2201000000, 3, 1, 'first_token', 64, 4),
        (1, 2301000000, 5, 1, 'preempt', 66, 4), (1, 2501000000, 7, 1, 'resume', 0, 4),
        (1, 2601000000, 9, 1, 'finish', 70, 4);
    INSERT INTO block_event (engine_id, time_ns, step, block_id, op, ref_count, request, pool) VALUES
        (1, 2040000000, 2, 3, 'allocate', 1, 2, 0),
        (1, 2301000000, 5, 2, 'free', 0, 1, 0), (1, 2301000001, 5, 2, 'allocate', 1, 2, 0);
    INSERT INTO step_schedule (engine_id, step, start_ns, scheduled_ns, admission_limit, limit_request,
        limit_need_blocks, limit_free_blocks, limit_kept_blocks, prefill_requests, chunked_prefill_requests,
        decode_requests, resumed_requests, prefill_tokens, chunked_prefill_tokens, decode_tokens, resumed_tokens)
    VALUES (1, 2, 2050000000, 2051000000, 'kv_insufficient', 1, 4, 5, 2, 0, 0, 0, 0, 0, 0, 0, 0);
    INSERT INTO prefix_miss (engine_id, time_ns, request, resumed, verdict, queried_tokens, local_hit_tokens, why,
        avoidable_tokens, avoidable_ns)
    VALUES (1, 2101000000, 1, false, 'evicted', 64, 16, 'Block 1 was evicted.', 32, 5000000);
"""


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("cmpl-aa-0", Subject("request", 1)),
        ("cmpl-aa-0-11", Subject("request", 1)),
        ("cmpl-aa", Subject("request", 1)),
        ("cmpl-aa…", Subject("request", 1)),
        ("2", Subject("request", 2)),
        ("#2", Subject("request", 2)),
        ("request:cmpl-ab", Subject("request", 2)),
        ("chat/1", Subject("request", 2)),
        ("draw", Subject("request", 3)),
        ("1_cmpl-c", Subject("request", 4)),
        ("file:///trace.html#from=1&request=cmpl-ab-0", Subject("request", 2)),
        ("#request=%231", Subject("request", 1)),
        ("#step=12&at=0.5", Subject("step", 12)),
        ("block:7", Subject("block", 7)),
    ],
)
def test_any_id_that_a_user_may_hold(make_trace: MakeTrace, text: str, subject: Subject) -> None:
    with Trace(make_trace(TRACE)) as trace:
        assert identify(trace, text) == subject


@pytest.mark.parametrize(("text", "candidates"), [("cmpl-a", "12"), ("chat", "12"), ("cmpl-c-0-33", "34")])
def test_an_id_of_several_requests_lists_them(make_trace: MakeTrace, text: str, candidates: str) -> None:
    with Trace(make_trace(TRACE)) as trace, pytest.raises(KvtraceError, match="2 requests are meant") as error:
        identify(trace, text)

    assert [line.split()[0] for line in str(error.value).splitlines()[1:]] == list(candidates)


def test_candidates_stand_in_columns(make_trace: MakeTrace) -> None:
    more = "INSERT INTO request (request, engine_id, internal_id, session, turn) VALUES "
    more += "(8, 1, 'x-8', 'talk', 8), (10, 1, 'x-10', 'talk', 10);"
    with Trace(make_trace(TRACE + more)) as trace, pytest.raises(KvtraceError, match="2 requests are meant") as error:
        identify(trace, "talk")
    assert str(error.value).splitlines()[1:] == ["   8  talk/8   x-8", "  10  talk/10  x-10"]


@pytest.mark.parametrize("text", ["cmpl-z", "99", "", "step:x"])
def test_an_id_of_nothing_is_an_error(make_trace: MakeTrace, text: str) -> None:
    with Trace(make_trace(TRACE)) as trace, pytest.raises(KvtraceError):
        identify(trace, text)


def sections(path: Path, subject: Subject) -> dict[str, tuple[tuple[str, str], ...]]:
    with Trace(path) as trace:
        found: list[Section] = explain(trace, subject)
    return {each.title: each.facts for each in found}


def test_a_request_that_waited_missed_and_was_preempted(make_trace: MakeTrace) -> None:
    found = sections(make_trace(TRACE), Subject("request", 1))

    head = found["Request 1: chat/0"]
    assert {("tenant", "acme"), ("lora", "sql")} < set(head)
    assert ("+1.3010 s", "preempted") in found["Timeline"]
    assert found["Timeline"][-1] == ("+1.6010 s", "ended: stop")
    spent = {name: text.split()[:3] for name, text in found["Where its time went"]}
    assert spent["queued"] == ["100", "ms", "16.7%"]
    assert spent["preempted"] == ["200", "ms", "33.3%"]
    assert found["Why it waited"][:3] == (
        ("in the queue", "100 ms"),
        ("before a step", "50 ms"),
        ("at its head", "50 ms (derived) in 1 step, mostly for kv_insufficient (inferred)"),
    )
    assert ("it needed", "4 blocks; 5 were free, 2 of them to be kept free") in found["Why it waited"]
    assert ("held in step 2", "1 block by chat/1 (request 2)") in found["Why it waited"]
    assert ("", "Block 1 was evicted.") in found["Why it missed"]
    assert ("avoidable", "32 tokens, about 5 ms") in found["Why it missed"]
    assert found["Preemptions"] == (
        ("step 5 (+1.3010 s)", "for chat/1 (request 2): 66 tokens of KV lost, again after 200 ms"),
    )
    assert found["In the batch beside it, by time"] == (("300 ms", "chat/1 (request 2)"),)


def test_who_gained_from_a_preemption_is_told_so(make_trace: MakeTrace) -> None:
    found = sections(make_trace(TRACE), Subject("request", 2))

    assert found["Preemptions"] == (("step 5 (+1.3010 s)", "chat/0 (request 1) was preempted for it"),)


def test_slow_decoding_is_split_by_what_ran_beside_it(make_trace: MakeTrace) -> None:
    steps = """
        INSERT INTO step_schedule (engine_id, step, start_ns, decode_requests, decode_tokens, prefill_requests,
            prefill_tokens, chunked_prefill_requests, resumed_requests, chunked_prefill_tokens, resumed_tokens)
        VALUES (1, 4, 2202000000, 2, 2, 0, 0, 0, 0, 0, 0), (1, 5, 2230000000, 2, 2, 1, 64, 0, 0, 0, 0),
            (1, 8, 2550000000, 1, 1, 0, 0, 0, 0, 0, 0);
        INSERT INTO step_update (engine_id, step, update_ns, end_ns) VALUES
            (1, 4, 2221000000, 2222000000), (1, 5, 2289000000, 2290000000), (1, 8, 2569000000, 2570000000);
        INSERT INTO step_request (engine_id, step, request, phase, scheduled_tokens) VALUES
            (1, 4, 1, 'decode', 1), (1, 5, 1, 'decode', 1), (1, 8, 1, 'decode', 1), (1, 5, 2, 'prefill', 64);
    """
    generated = dict(sections(make_trace(TRACE + steps), Subject("request", 1))["How it generated"])

    assert generated["each token"].startswith("100 ms; ")
    assert generated["beside prefills"] == (
        "1 of 3 steps, with 64 tokens of others' prompts: 60 ms (recorded), "
        "40 ms more than its other steps take (derived)"
    )
    assert generated["preempted"] == "1 time: 200 ms out of the batch, 0 ms to compute its KV again (recorded)"
    assert generated["batch"].startswith("2.0 requests")


def test_a_request_behind_others_is_told_behind_whom(make_trace: MakeTrace) -> None:
    behind = "UPDATE request SET queued_ns = 2049000000 WHERE request = 2;"
    waited = sections(make_trace(TRACE + behind), Subject("request", 2))["Why it waited"]

    assert waited == (
        ("in the queue", "52 ms"),
        ("before a step", "2 ms"),
        ("behind others", "50 ms (derived) in 1 step"),
        ("", "50 ms behind chat/0 (request 1): kv_insufficient"),
    )


def test_a_request_that_was_never_admitted_is_told_where_it_waited(make_trace: MakeTrace) -> None:
    left = (
        """UPDATE request SET queued_ns = 2049000000, scheduled_ns = NULL, first_token_ns = NULL WHERE request = 2;"""
    )
    waited = sections(make_trace(TRACE + left), Subject("request", 2))["Why it waited"]

    assert waited == (
        ("", "It was never admitted."),
        ("before a step", "2 ms"),
        ("behind others", "350 ms (derived) in 1 step"),
        ("", "350 ms behind chat/0 (request 1): kv_insufficient"),
    )


def test_a_step_and_a_block(make_trace: MakeTrace) -> None:
    path = make_trace(TRACE)

    step = dict(sections(path, Subject("step", 2))["Step 2 of engine 1, at +1.0500 s"])
    assert step["queue's head"] == "request 1: kv_insufficient, needed 4 blocks beside 2 kept free (inferred)"
    block = sections(path, Subject("block", 2))
    assert block["Events"] == (("+1.3010 s", "free by chat"), ("+1.3010 s", "allocate by chat"))
    with Trace(path) as trace, pytest.raises(KvtraceError, match="no step 77"):
        explain(trace, Subject("step", 77))


def test_the_command_writes_text_and_json_in_either_order(make_trace: MakeTrace) -> None:
    path = make_trace(TRACE)

    text = kvtrace("explain", path, "chat/0")
    assert text.returncode == 0, text.stderr
    assert text.stdout.startswith("Request 1: chat/0\n")
    assert kvtrace("explain", "chat/0", path).stdout == text.stdout
    assert "Request 1: chat/0" in json.loads(kvtrace("explain", path, "chat/0", "--json").stdout)


def test_a_clients_request_of_several_samples_tells_of_each(make_trace: MakeTrace) -> None:
    parent = "INSERT INTO request (request, internal_id, external_id) VALUES (5, 'cmpl-c-0-33', 'cmpl-c-0');"
    with Trace(make_trace(TRACE + parent)) as trace:
        head, samples, timeline, spent = explain(trace, identify(trace, "cmpl-c-0"))
    assert head.facts == (
        ("client's id", "cmpl-c-0"),
        ("samples", "2 of one prompt; the engine knows only these"),
        ("prompt", "64 tokens"),
        ("output", "4 tokens"),
    )
    assert samples.title == "Samples"
    assert [what for _, what in timeline.facts] == ["arrived", "the last sample ended"]
    assert [(name, text.split()[:2]) for name, text in spent.facts][1:] == [
        ("queued", ["1", "ms"]),
        ("prefill", ["100", "ms"]),
        ("decode", ["100", "ms"]),
    ]
    assert samples.facts[0] == ("request 3", "2 tokens, 201 ms in all, 1 ms queued, ended by length")
    assert [name for name, _ in samples.facts] == ["request 3", "request 4"]
