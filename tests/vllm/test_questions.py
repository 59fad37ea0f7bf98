"""The ten questions of docs/questions.md, each answered by a command, against the word of vLLM and of its clients."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.vllm import sdk
from tests.vllm.conftest import ENGINE, Recorded, kvtrace
from tests.vllm.sdk import Seen
from tests.vllm.served import MARKED_TENANT
from tests.vllm.test_privacy import files

CLOCKS_MS = 2.0
"""How far vLLM's own times, which it rounds and takes elsewhere, may be from the trace's."""

ROUNDED_MS = 0.1
"""How far a sum of vLLM's times, which are floating-point seconds since the host's start, may be off."""

LATE_MS = 5.0
"""How long after a token was written to a connection its client, or the record of it, comes as a rule."""


@pytest.fixture
def ask(asked: Recorded) -> Any:
    """`ask(command, ...)`: the answer of one command about the recording, as JSON."""

    def answer(command: str, *arguments: str, trace_first: bool = False) -> Any:
        run = str(asked.run)
        words = [command, run, *arguments] if trace_first else [command, *arguments[:1], run, *arguments[1:]]
        done = kvtrace(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return answer


@pytest.fixture
def seen(asked: Recorded) -> list[Seen]:
    return asked.truth["seen"]


@pytest.fixture
def metric(asked: Recorded) -> Any:
    return lambda name, label="": sdk.gauge(asked.truth["metrics"], f"vllm:{name}", label)


def stayed(seen: list[Seen]) -> list[Seen]:
    return [each for each in seen if each.kind != "leaver"]


def preemptions(rows: list[dict[str, Any]]) -> tuple[int, int]:
    """Preemptions of clients that stayed, and all: vLLM counts one with the next output, which may never be."""
    return sum(not row["session"].startswith("leaver") for row in rows), len(rows)


def block_events(asked: Recorded) -> list[dict[str, Any]]:
    """All that changed how often a block is referenced, in order."""
    return asked.trace.sql(
        "SELECT time_ns, block_id, ref_count FROM block_event"
        " WHERE op IN ('allocate', 'hit', 'free') ORDER BY time_ns, rowid"
    ).to_dict("records")


def queue_events(asked: Recorded) -> list[dict[str, Any]]:
    """All that began or ended a request's waiting, in order. A client that leaves may end it within a step."""
    return asked.trace.sql(
        "SELECT time_ns, request, 'queue' AS op FROM request_queued"
        " UNION ALL SELECT time_ns, request, op FROM request_event ORDER BY time_ns"
    ).to_dict("records")


def shown_steps(asked: Recorded) -> list[int]:
    """Find the steps that vLLM's gauges showed when they were sampled, as indices of `step-timeline`'s rows.

    However late a busy server answers, its gauges show some step, later ones in later samples.
    """
    ends_ns = [row["end_ns"] for row in asked.trace.sql("SELECT end_ns FROM step ORDER BY step").to_dict("records")]
    events, turns = deque(block_events(asked)), deque(queue_events(asked))
    references: dict[int, int] = {}
    waiting: set[int] = set()
    told: list[tuple[int, int]] = []
    for end_ns in ends_ns:
        while events and events[0]["time_ns"] <= end_ns:
            event = events.popleft()
            references[event["block_id"]] = event["ref_count"]
        while turns and turns[0]["time_ns"] <= end_ns:
            turn = turns.popleft()
            (waiting.add if turn["op"] in ("queue", "preempt") else waiting.discard)(turn["request"])
        told.append((len(waiting), sum(count > 0 for count in references.values())))
    shown = [0]
    for at, waiting, used in asked.truth["gauges"].samples:
        sample = (int(waiting), round(used * (ENGINE["num_gpu_blocks_override"] - 1)))
        if shown == [0] and sample == (0, 0):
            continue  # before the first step
        assert sample in told[shown[-1] :], (at, sample, told[shown[-1] :])
        shown.append(told.index(sample, shown[-1]))
        assert ends_ns[shown[-1]] / 1e9 <= at + CLOCKS_MS / 1e3
    return shown[1:]


def takings(asked: Recorded) -> list[dict[str, Any]]:
    """Between which two times vLLM took its own time of each thing that a request's parts begin or end with.

    The first is the trace's. vLLM takes a request's admission within `schedule`, its tokens' times within
    `update_from_output`, and queues requests one after another, between steps; a busy machine may stop it anywhere.
    """
    return asked.trace.sql("""
        SELECT request, r.queued_ns, least(next_ns, (SELECT min(start_ns) FROM step WHERE start_ns > r.queued_ns))
                AS queued_by_ns,
            r.scheduled_ns AS admitted_ns, admitted.scheduled_ns AS admitted_by_ns,
            r.first_token_ns AS first_ns, first.end_ns AS first_by_ns,
            r.finished_ns AS last_ns, last.end_ns AS last_by_ns
        FROM request r
            JOIN (SELECT request, lead(time_ns) OVER (ORDER BY time_ns) AS next_ns FROM request_queued) USING (request)
            JOIN step admitted ON admitted.start_ns = r.scheduled_ns
            JOIN step first ON first.update_ns = r.first_token_ns
            JOIN step last ON r.finished_ns BETWEEN last.update_ns AND last.end_ns
    """).to_dict("records")


def of_client(rows: list[dict[str, Any]], seen: Seen) -> dict[str, Any]:
    """Find the row of a client's request, of one with two samples that which has both."""
    [row] = [row for row in rows if row["external_id"] == f"{seen.id}-0"]
    return row


def handed_ns(row: dict[str, Any]) -> float:
    """When the API process had handed on the last token of a request."""
    return row["arrival_ns"] + (row["total_ms"] + row["output_ms"]) * 1e6


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Leave out the last digits of sums, which depend on the order of what is added."""
    return {name: float(f"{value:.9g}") if isinstance(value, float) else value for name, value in row.items()}


def milliseconds(text: str) -> float:
    number, unit = text.split()[:2]
    return float(number.replace(",", "")) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit]


def test_the_commands_of_the_page_answer_as_they_are_printed(asked: Recorded, seen: list[Seen]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "questions.md").read_text()
    commands = re.findall(r"^\| .+\? \| `kvtrace (.+?)` \|", page, re.MULTILINE)
    assert len(commands) == 10
    for command in commands:
        words = [{"run": str(asked.run), "12": seen[0].id}.get(word, word) for word in command.split()]
        done = kvtrace(*words)
        assert (done.returncode, done.stderr) == (0, ""), command
        assert len(done.stdout.splitlines()) > 3, command


def test_why_was_this_request_slow(ask: Any, seen: list[Seen]) -> None:
    """The id is the client's; the parts add up to the engine's time, which is over before the client's last token."""
    slow = max((each for each in seen if each.kind in ("agent", "batch")), key=lambda each: each.total_ms)
    told = ask("explain", slow.id, trace_first=True)
    title = next(iter(told))
    assert title.endswith(f": {slow.session}/{slow.turn}")
    facts = dict(told[title])
    assert facts["prompt"] == f"{slow.prompt_tokens} tokens"
    assert facts["output"] == f"{slow.output_tokens} tokens"
    parts = {name: milliseconds(text) for name, text in told["Where its time went"]}
    row = of_client(ask("query", "request-latency"), slow)
    after_ms = parts.pop("after the engine")
    assert sum(parts.values()) == pytest.approx(row["total_ms"], rel=0.01)  # preemptions, too, where there were some
    assert sum(parts.values()) + after_ms == pytest.approx(row["total_ms"] + row["output_ms"], rel=0.01)
    assert row["arrival_ns"] + row["total_ms"] * 1e6 <= slow.last_ns + CLOCKS_MS * 1e6
    assert "Why it waited" in told


def test_both_samples_of_a_request_are_found_by_the_id_of_its_client(ask: Any, seen: list[Seen]) -> None:
    pair = next(each for each in seen if each.kind == "pair")
    told = ask("explain", pair.id, trace_first=True)
    samples = [text for name, text in told["Samples"]]
    assert len(samples) == 2
    assert all("20 tokens" in text for text in samples)
    parts = {name: milliseconds(text) for name, text in told["Where its time went"]}
    row = of_client(ask("query", "request-latency"), pair)
    assert sum(parts.values()) == pytest.approx(row["total_ms"] + row["output_ms"], rel=0.01)
    assert row["total_ms"] + row["output_ms"] <= pair.ended_ms + CLOCKS_MS
    assert "after the engine" in parts


def test_requests_of_two_samples_give_no_false_warning(asked: Recorded, tmp_path: Path) -> None:
    """Neither the clients' requests, which no engine has, nor their samples, which no client sent, are unmatched."""
    done = kvtrace("ingest", asked.run, "-o", tmp_path / "again.duckdb")
    assert (done.returncode, done.stderr) == (0, "")
    assert "have no row in" not in done.stdout


def test_a_request_of_two_samples_ends_when_its_client_has_both(ask: Any, seen: list[Seen]) -> None:
    """Its row is the client's: tokens of both samples, and when the API process had handed the last one on."""
    rows = ask("query", "request-latency")
    for each in (one for one in seen if one.kind == "pair"):
        row = of_client(rows, each)
        own = [one for one in rows if one["parent"] == row["request"]]
        assert (row["samples"], sorted(one["sample"] for one in own)) == (2, [0, 1])
        assert (row["session"], row["output_tokens"]) == (each.session, each.output_tokens)
        assert row["output_tokens"] == sum(one["output_tokens"] for one in own)
        assert row["total_ms"] == pytest.approx(max(one["total_ms"] for one in own))
        parts = ("frontend_ms", "queue_ms", "prefill_ms", "decode_ms")
        assert sum(row[part] for part in parts) == pytest.approx(row["total_ms"])
        assert row["output_ms"] > 0
        assert (row["first_output_ms"] or 1) > 0  # NULL if all tokens were handed on at once
        # by the clocks of both: after the engine had its last token, before its client had the end of the stream
        assert row["arrival_ns"] + row["total_ms"] * 1e6 < handed_ns(row) <= each.ended_ns + CLOCKS_MS * 1e6


def test_why_is_my_hit_rate_what_it_is(ask: Any, metric: Any, seen: list[Seen]) -> None:
    rows = [row for row in ask("query", "prefix-miss-summary") if not row["resumed"]]
    hit, queried = sum(row["hit_tokens"] for row in rows), sum(row["queried_tokens"] for row in rows)
    assert (queried, hit) == (metric("prefix_cache_queries_total"), metric("prefix_cache_hits_total"))
    told = sum(each.cached_tokens for each in seen if each.kind in ("agent", "batch"))
    assert 0 < told <= hit
    assert {"never_stored", "evicted"} <= {row["verdict"] for row in rows}


def test_which_client_evicts_whom(asked: Recorded, ask: Any) -> None:
    rows = ask("query", "evictor-victim", "-p", "by=kind")
    removed = sum(count for _, count in asked.truth["events"]["removed"])
    assert sum(row["evicted_blocks"] for row in rows) == removed > 0
    assert any((row["evictor"], row["victim"]) == ("batch", "agent") and row["lost_tokens"] for row in rows)


def test_every_request_has_the_tenant_of_its_client(ask: Any, seen: list[Seen]) -> None:
    """By `user`, header or tag; the latter overrule the former. Names are hashed, and samples have their client's."""
    by_kind: dict[str, set[str]] = {kind: set() for kind in sdk.TENANTS}
    for row in ask("query", "request-latency"):
        if row["session"] is not None:
            by_kind[row["session"].split("-")[0]].add(row["tenant"])
    assert {kind: len(found) for kind, found in by_kind.items()} == dict.fromkeys(sdk.TENANTS, 1)
    tenants = {kind: tenant for kind, [tenant] in by_kind.items()}
    assert len(set(tenants.values())) == len(sdk.TENANTS)
    assert all(re.fullmatch(r"[0-9a-f]{12}", tenant) for tenant in tenants.values())
    told = ask("explain", next(each.id for each in seen if each.kind == "pair"), trace_first=True)
    assert dict(next(iter(told.values())))["tenant"] == tenants["pair"]


def test_no_tenants_name_is_in_any_file(asked: Recorded) -> None:
    for path in files(asked.run):
        assert MARKED_TENANT.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("query", ["evictor-victim", "kv-holders"])
def test_tenants_do_to_each_other_what_their_kinds_do(ask: Any, query: str) -> None:
    """Each kind of client is a tenant of its own, so only the names differ; requests without one have neither."""
    kinds, rows = (ask("query", query, "-p", f"by={by}") for by in ("kind", "tenant"))
    names = {row["tenant"]: row["session"].split("-")[0] for row in ask("query", "request-latency") if row["session"]}
    who = [name for name in ("evictor", "victim", "holder") if name in rows[0]]

    def ordered(answer: list[dict[str, Any]]) -> list[str]:
        return sorted(json.dumps(rounded(row)) for row in answer)

    assert ordered([row | {name: names.get(row[name]) for name in who} for row in rows]) == ordered(kinds)


def test_would_twice_the_cache_help(ask: Any, metric: Any) -> None:
    """The pool's own hits are vLLM's, to the token; what LRU has at its size is near them, and twice that has more."""
    rows = {row["times"]: row for row in ask("query", "reuse")}
    pool, twice = rows[1], rows[2]
    assert pool["size_blocks"] == ENGINE["num_gpu_blocks_override"] - 1
    assert pool["recorded_hit_tokens"] == metric("prefix_cache_hits_total")
    assert abs(pool["hit_tokens"] - pool["recorded_hit_tokens"]) / ENGINE["block_size"] < 0.15 * pool["lookups"]
    assert twice["more_hit_tokens"] == twice["hit_tokens"] - pool["hit_tokens"] > 0
    in_full = {row["size_blocks"]: row["lru_miss_ratio"] for row in ask("reuse", trace_first=True)}
    assert 1 - pool["hit_rate"] == pytest.approx(in_full[pool["size_blocks"]])


def test_should_i_offload(ask: Any) -> None:
    rows = [
        row
        for row in ask("query", "recompute-vs-swap", "-p", "assumed_gb_per_s=10")
        if row["dimension"] == "lost_tokens"
    ]
    kept, preempted = preemptions(ask("query", "preempted-for"))
    assert kept <= sum(row["events"] for row in rows if row["cause"] == "preemption") <= preempted
    token_bytes = 2 * 4 * 4 * 32 * 2  # K and V of 4 layers with 4 heads of 32 numbers of 2 bytes
    [price] = [row for row in ask("query", "cost-model") if row["used"]]
    for row in rows:
        assert row["mean_assumed_fetch_ms"] == pytest.approx(row["mean_lost_tokens"] * token_bytes / 10e9 * 1e3)
        if row["strategy"] == "recomputed":
            # the price of cost-model, of tokens behind others that are no more than a sequence has
            tokens = row["mean_lost_tokens"]
            least_us, most_us = sorted(
                tokens * (price["us_per_token"] + context * price["us_per_1k_context"] / 1e3)
                for context in ((tokens + 1) / 2, ENGINE["max_model_len"])
            )
            assert least_us <= row["mean_recompute_ms"] * 1e3 * 1.0001
            assert row["mean_recompute_ms"] * 1e3 <= most_us * 1.0001
            assert min(row["mean_recompute_ms"], row["mean_overhead_ms"]) > 0
    assert any(row["strategy"] == "recomputed" for row in rows)


def test_who_preempted_whom(ask: Any, metric: Any, seen: list[Seen]) -> None:
    rows = ask("query", "preempted-for")
    tenants = {row["session"]: row["tenant"] for row in ask("query", "request-latency")}
    assert all(row["tenant"] == tenants[row["session"]] for row in rows)
    assert all(row["for_tenant"] == tenants[row["for_session"]] for row in rows if row["preempted_for"] is not None)
    kept, preempted = preemptions(rows)
    assert 0 < kept <= metric("num_preemptions_total") <= preempted
    sessions = {each.session for each in seen}
    assert {row["session"] for row in rows} <= sessions
    for row in rows:  # it may have needed the blocks itself
        assert row["for_session"] in (sessions if row["preempted_for"] is not None else {None})
        assert row["preempted_for"] != row["request"]
    assert any(row["preempted_for"] is not None for row in rows)


def test_why_do_requests_queue(asked: Recorded, ask: Any) -> None:
    """Where vLLM's gauge shows requests that wait, and there only, the step has a reason."""
    rows = {row["admission_limit"]: row for row in ask("query", "admission-limits")}
    steps = ask("query", "step-timeline")
    assert rows["kv_insufficient"]["mean_need_blocks"] > rows["kv_insufficient"]["mean_free_blocks"]
    shown = shown_steps(asked)
    limits = Counter(steps[index]["admission_limit"] for index in shown if steps[index]["waiting"])
    assert "none" not in limits
    assert limits
    assert {steps[index]["admission_limit"] for index in shown if not steps[index]["waiting"]} <= {"none"}
    limited_ms = sum(row["wall_ms"] for limit, row in rows.items() if limit != "none")
    assert limited_ms == pytest.approx(
        sum(step["interval_ms"] or 0 for step in steps if step["admission_limit"] != "none")
    )


def test_what_do_disconnects_waste(ask: Any, metric: Any, seen: list[Seen]) -> None:
    rows = {row["session"]: row for row in ask("query", "aborted-work")}
    left = {each.session: each for each in seen if each.kind == "leaver"}
    assert rows.keys() == left.keys()
    assert len({row["tenant"] for row in rows.values()} - {None}) == 1
    for session, row in rows.items():
        assert left[session].received <= row["output_tokens"] < sdk.LEAVER_TOKENS
        assert row["computed_tokens"] >= 50  # the prompt
    sent = metric("generation_tokens_total") - sum(each.output_tokens for each in seen) - 1  # the sentinel's
    assert sum(each.received for each in left.values()) <= sent <= sum(row["output_tokens"] for row in rows.values())


def test_who_holds_the_kv(asked: Recorded, ask: Any, seen: list[Seen]) -> None:
    rows = {row["holder"]: row for row in ask("query", "kv-holders", "-p", "by=kind")}
    for kind in ("agent", "batch"):
        mine = [each for each in seen if each.kind == kind]
        assert rows[kind]["requests"] == len(mine)
        assert rows[kind]["prompt_tokens"] == sum(each.prompt_tokens for each in mine)
        assert rows[kind]["hit_tokens"] == sum(each.cached_tokens for each in mine)
    assert {kind: rows[kind]["requests"] for kind in ("pair", "leaver")} == {"pair": 4, "leaver": sdk.LEAVERS}
    shown_steps(asked)  # vLLM's gauge shows the blocks that these events leave in use
    held, since = 0.0, 0
    references: Counter[int] = Counter()
    for event in block_events(asked):
        held += references.total() * (event["time_ns"] - since) / 1e9
        references[event["block_id"]], since = event["ref_count"], event["time_ns"]
    assert not references.total()
    assert sum(row["block_seconds"] for row in rows.values()) == pytest.approx(held)


def test_is_the_api_server_the_bottleneck(asked: Recorded, ask: Any, metric: Any, seen: list[Seen]) -> None:
    """Each request's parts lie within what its client saw, and their sums are those of vLLM's histograms."""
    all_rows = ask("query", "request-latency")
    rows = [row for row in all_rows if row["engine_id"] is not None]
    late_ms = [(handed_ns(of_client(all_rows, each)) - each.last_ns) / 1e6 for each in stayed(seen)]
    at_once = 0
    for each in seen:
        if each.kind in ("agent", "batch"):
            row = of_client(rows, each)
            assert each.sent_ns / 1e6 - CLOCKS_MS <= row["arrival_ns"] / 1e6 <= each.first_ns / 1e6
            assert row["ttft_ms"] <= (each.first_ns - each.sent_ns) / 1e6 + CLOCKS_MS
            assert row["total_ms"] + row["output_ms"] <= each.ended_ms + CLOCKS_MS
            if row["first_output_ms"] is None:  # a busy API process handed all tokens on at once
                at_once += 1
                continue
            first_ns = row["arrival_ns"] + (row["ttft_ms"] + row["first_output_ms"]) * 1e6
            late_ms.append((first_ns - each.first_ns) / 1e6)
    # when the server says that it handed a token on, the client has it
    assert abs(median(late_ms)) < LATE_MS
    assert at_once < 0.2 * len(late_ms)
    mine = [row for row in rows if row["session"] and "agent" in row["session"]]
    assert all(row["output_ms"] > 0 and (row["first_output_ms"] or 1) > 0 for row in mine)
    ended = {row["request"]: row for row in rows if row["finish_reason"] == "length"}
    assert len(ended) == metric("request_queue_time_seconds_count")
    took = {each["request"]: each for each in takings(asked)}
    for part, begins, ends in (
        ("queue", "queued", "admitted"),
        ("prefill", "admitted", "first"),
        ("decode", "first", "last"),
    ):
        least_ms = sum(took[request][f"{ends}_ns"] - took[request][f"{begins}_by_ns"] for request in ended) / 1e6
        most_ms = sum(took[request][f"{ends}_by_ns"] - took[request][f"{begins}_ns"] for request in ended) / 1e6
        assert least_ms <= sum(row[f"{part}_ms"] for row in ended.values()) <= most_ms
        assert least_ms - ROUNDED_MS <= metric(f"request_{part}_time_seconds_sum") * 1e3 <= most_ms + ROUNDED_MS
    assert Counter(row["finish_reason"] for row in rows)["abort"] == sdk.LEAVERS
