"""Findings: each rule on the hand-written trace of the query that it asks, ranking, and a healthy run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvtrace.queries import Trace
from kvtrace.queries.findings import Finding, find_findings
from kvtrace.queries.findings.find import MOST, rules
from tests.queries.conftest import MakeTrace

TRACES = Path(__file__).parent.parent


def found_in(make_trace: MakeTrace, query: str, rule: str, more: str = "") -> list[Finding]:
    """Return what a rule finds in the trace that a query is tested on."""
    sql = (TRACES / query / "trace.sql").read_text()
    with Trace(make_trace(sql + more)) as trace:
        return [finding for finding in find_findings(trace, most=100) if finding.rule == rule]


def test_the_prefix_cache_lost_what_was_used_again(make_trace: MakeTrace) -> None:
    # first admissions of engine 1: 255 tokens looked up, 50 found, 60 lost; 50 of the 205 missed never stored
    [finding] = found_in(make_trace, "prefix-miss-summary", "prefix_cache")
    assert "20% of the prompt tokens came from the prefix cache" in finding.text
    assert "24% of the rest was never stored before" in finding.text
    assert "would give 43%" in finding.text
    assert "1 request began as an earlier one, with at least 8 tokens in all, but less than a block" in finding.text
    assert (finding.cost_ms, finding.evidence, finding.rows) == (6, "prefix-miss-summary", 3)


def test_what_was_stored_before_the_retained_part_is_not_known(make_trace: MakeTrace) -> None:
    more = "UPDATE prefix_miss SET verdict = 'unknown' WHERE verdict = 'never_stored';"
    [finding] = found_in(make_trace, "prefix-miss-summary", "prefix_cache", more)
    assert "0% of the rest was never stored before; of 24% that is not known." in finding.text


def test_a_cache_that_loses_nothing_is_not_the_problem(make_trace: MakeTrace) -> None:
    more = "UPDATE prefix_miss SET avoidable_tokens = 0, avoidable_ns = 0;"
    [finding] = found_in(make_trace, "prefix-miss-summary", "prefix_cache", more)
    assert "KV memory is not what limits hits" in finding.text
    assert finding.remedy == ""


def test_prefills_that_graphs_could_have_launched_sooner(make_trace: MakeTrace) -> None:
    # the step of 504 tokens took 20 ms to launch, one of 64 tokens 8 with graphs; the six steps take 84 ms
    [finding] = found_in(make_trace, "step-launches", "graphs")
    assert finding.text == (
        "Engine 1: 1 step with prefill and at most 512 tokens ran without CUDA graphs. Launching one took the host "
        "20 ms in the mean; with graphs, which steps of up to 64 tokens had, it takes 8 ms: 12 ms in all (14% of the "
        "steps' time)."
    )
    assert (finding.cost_ms, finding.evidence, finding.rows) == (12, "step-launches", 2)


@pytest.mark.parametrize(
    "more",
    [
        "UPDATE forward SET graph_mode = 'eager';",
        "UPDATE forward SET graph_mode = 'piecewise' WHERE graph_mode = 'eager';",
        "UPDATE forward SET graph_mode = NULL;",
        "UPDATE forward SET tokens = 513 WHERE tokens = 504;",
        "UPDATE forward SET end_ns = start_ns + 9000000 WHERE tokens = 504;",
        "UPDATE forward SET graph_mode = 'full' WHERE graph_mode = 'piecewise';",
    ],
    ids=["none has graphs", "all have", "not told", "too large", "no slower", "other graphs"],
)
def test_launches_that_no_graph_would_shorten_are_no_finding(make_trace: MakeTrace, more: str) -> None:
    assert found_in(make_trace, "step-launches", "graphs", more) == []


def test_a_rule_of_the_lookup_that_costs_hits_is_named(make_trace: MakeTrace) -> None:
    more = """
        INSERT INTO prefix_loss BY NAME SELECT * FROM (VALUES
            (1, 1, 1, false, 0, 'absent', 0, 100, 50, 100), (1, 1, 1, false, 1, 'window_gap', 1, 40, 32, 20),
            (1, 2, 2, false, 0, 'alignment', 0, 3, 3, 3), (1, 3, 3, true, 0, 'eagle_drop', 0, 99, 99, 99)
        ) AS l(engine_id, request, step, resumed, place, rule, kv_group, lost_tokens, known_tokens, compute_ns);
    """
    [finding] = found_in(make_trace, "prefix-miss-summary", "prefix_gates", more)
    assert finding.text == (
        "A sliding window that was not in the cache where it was needed (KV cache group 1) cost 32 tokens of "
        "prefix hits that earlier requests had computed: 13% of the prompt tokens."
    )
    assert finding.cost_ms == pytest.approx(20e-6 * 32 / 40)
    assert "--prefix-cache-retention-interval" in finding.remedy


def test_drafts_that_do_not_pay_are_named(make_trace: MakeTrace) -> None:
    # GIVEN a step of 20 ms, 16 ms without its four draft tokens, of which none is accepted
    more = "UPDATE draft SET accepted_tokens = 0 WHERE engine_id = 2;"
    [finding] = found_in(make_trace, "speculation", "speculation", more)
    assert finding.text == (
        "Engine 2: Of 4 tokens that speculation drafted, 0% were accepted; 6.2% would have had to be for it to pay. It "
        "cost 4 ms more than it saved in 1 step."
    )
    assert (finding.cost_ms, finding.evidence, finding.rows) == (4, "speculation", 1)


def test_drafts_that_pay_are_no_finding(make_trace: MakeTrace) -> None:
    assert found_in(make_trace, "speculation", "speculation") == []


def test_requests_waited_for_blocks(make_trace: MakeTrace) -> None:
    [finding] = found_in(make_trace, "admission-limits", "waiting")
    assert finding.text == (
        "In 2 steps (40 ms, 40% of the time) requests waited because their KV blocks could not be allocated; 3.0 "
        "waited on average. The first in the queue needed 15 blocks on average, and 4 were free."
    )
    assert (finding.basis, finding.cost_ms) == ("inferred", 140)


def test_preemptions_are_counted_with_what_they_discarded(make_trace: MakeTrace) -> None:
    [finding] = found_in(make_trace, "preemptions", "preemption")
    assert finding.text == (
        "4 preemptions of 3 requests discarded the KV of 160 tokens; 60 tokens were computed again, and the requests "
        "waited 5.5 ms to go on."
    )


def test_pins_that_forced_others_to_wait(make_trace: MakeTrace) -> None:
    found = found_in(make_trace, "pin-forced", "pins")
    assert {finding.text.partition(",")[0] for finding in found} == {
        "Blocks that pins of cause ttl held",
        "Blocks that pins of cause connector held",
    }
    refused, preempted = found
    assert refused.text.endswith("for 1 refused admission of 1 request, in steps that took 1.5 ms.")
    assert preempted.text.endswith("for 1 preemption of 1 request.")
    assert (refused.cost_ms, preempted.cost_ms) == (4.5, 1)


@pytest.mark.parametrize(("policy", "ordered"), [("fcfs", True), ("priority", False)])
def test_pins_are_for_turns_that_are_served_in_order(make_trace: MakeTrace, policy: str, *, ordered: bool) -> None:
    more = f"INSERT INTO engine (engine_id, policy) VALUES (1, '{policy}');"
    pinned, connector = found_in(make_trace, "pin-forced", "pins", more)
    assert ("order=jobs" in pinned.remedy) is ordered
    assert "order=jobs" not in connector.remedy


def test_pins_that_forced_all_waiting_are_told_before_the_waiting(make_trace: MakeTrace) -> None:
    sql = (TRACES / "pin-forced" / "trace.sql").read_text()
    with Trace(make_trace(sql + "DELETE FROM step_schedule WHERE step = 6;")) as trace:
        rules_in_order = [finding.rule for finding in find_findings(trace, most=100)]
    assert rules_in_order.index("pins") < rules_in_order.index("waiting")


def test_a_step_that_its_tokens_do_not_explain(make_trace: MakeTrace) -> None:
    # twenty more steps with prefill of 10 to 29 tokens, 1 ms a token, and one of 10 tokens that takes 200 ms
    later = "SELECT 1, step, 1000000000 + step * 1000000000 AS start_ns, step AS tokens FROM range(10, 30) AS t(step)"
    more = f"""
        INSERT INTO step_schedule BY NAME SELECT 1 AS engine_id, start_ns, start_ns AS scheduled_ns, step,
            tokens AS prefill_tokens, 0 AS chunked_prefill_tokens, 0 AS decode_tokens, 0 AS resumed_tokens
        FROM ({later} UNION ALL SELECT 1, 30, 40000000000, 10);
        INSERT INTO step_update BY NAME SELECT 1 AS engine_id, step, start_ns + tokens * 1000000 AS update_ns,
            start_ns + tokens * 1000000 AS end_ns
        FROM ({later} UNION ALL SELECT 1, 30, 40000000000, 200);
    """
    [finding] = found_in(make_trace, "step-residuals", "slow_steps", more)
    assert "1 step took over 3 times as long" in finding.text
    assert "The worst is step 30: 200 ms for 10 tokens." in finding.text
    assert found_in(make_trace, "step-residuals", "slow_steps") == []


def test_the_api_process_is_named_where_it_takes_long(make_trace: MakeTrace) -> None:
    # 1.6 of 48 ms are too little; 21.6 of 68 ms are not
    assert found_in(make_trace, "request-latency", "api_process") == []
    more = "UPDATE request SET arrival_ns = arrival_ns - 20000000 WHERE request = 1;"
    [finding] = found_in(make_trace, "request-latency", "api_process", more)
    assert finding.text.startswith("32% of the time to first token passed before the engine had the request")


def test_the_api_process_is_named_where_it_hands_outputs_on_late(make_trace: MakeTrace) -> None:
    # 3.5 ms after 74 ms in the engine are too little; 20.5 ms are not
    more = "UPDATE request_delivery SET time_ns = time_ns + 17000000 WHERE request = 1;"
    [finding] = found_in(make_trace, "request-latency", "api_process", more)
    assert finding.text == (
        "22% of the clients' time passed after the engine had ended the request: the API process handed on the last "
        "output 10.2 ms later on average, 20 ms at most."
    )
    assert (finding.cost_ms, finding.basis, finding.rows) == (20.5, "derived", 2)  # two samples are a client's one


def test_what_was_computed_for_clients_that_left(make_trace: MakeTrace) -> None:
    assert found_in(make_trace, "request-latency", "aborted") == []  # its one abort never ran
    more = "UPDATE request SET finish_reason = 'abort' WHERE request = 1;"
    [finding] = found_in(make_trace, "request-latency", "aborted", more)
    assert finding.text == "1 request ended in an abort after 50 ms in the batch, with 5 tokens generated for nobody."


def test_loads_that_failed(make_trace: MakeTrace) -> None:
    here, there = found_in(make_trace, "failed-loads", "failed_loads")
    assert here.text == (
        "Engine 1: Loads of KV of 2 requests failed, 1 before any transfer; they had waited 12 ms for it. 1 request "
        "ended with an error for that."
    )
    assert (here.cost_ms, here.rows, str(here.worst)) == (12, 2, "request:2")
    assert there.text == "Engine 2: The load of KV of 1 request failed; it had waited 4 ms for it."


def test_a_worker_that_is_long_in_its_connector(make_trace: MakeTrace) -> None:
    # engine 2's connector takes 200 ns of 9 ms, which is nothing to tell
    [finding] = found_in(make_trace, "connector-calls", "connector_calls")
    assert finding.text == (
        "Engine 1: The worker spent 11.5 ms in calls into LMCacheConnectorV1, 41% of the steps' time; 10 ms of it in "
        "save. It launches nothing meanwhile. For 3 ms of it the GPU was at the step's own work."
    )
    assert finding.cost_ms == pytest.approx(27 * (1 - 3 / 11.5))
    assert (finding.evidence, finding.rows) == ("connector-calls", 3)


def test_a_worker_that_waits_for_its_gpu_is_not_long_in_its_connector(make_trace: MakeTrace) -> None:
    waits = "UPDATE transfer_end SET started_ns = 8000000 WHERE process_id = 11; UPDATE transfer_end SET "
    waits += (
        "started_ns = 17000000 WHERE process_id = 10 AND transfer = 2; DELETE FROM connector_call WHERE call = 'load';"
    )
    assert found_in(make_trace, "connector-calls", "connector_calls", waits) == []


@pytest.mark.parametrize(("direction", "told"), [("store", True), ("load", False)])
def test_a_tier_that_is_only_stored_to(make_trace: MakeTrace, direction: str, told: bool) -> None:
    moved = "INSERT INTO transfer_submit (process_id, engine_id, step, transfer, direction, bytes) VALUES "
    more = f"{moved} (10, 1, 1, 0, 'store', 7000000000), (10, 1, 2, 1, '{direction}', 7000000000);"
    [finding] = found_in(make_trace, "connector-calls", "connector_calls", more)
    assert finding.text.endswith(" It stored 14 GB, and loaded nothing.") is told
    assert ("loaded from only costs" in finding.remedy) is told


def test_an_incomplete_recording_comes_first(make_trace: MakeTrace) -> None:
    sql = (TRACES / "run-summary" / "trace.sql").read_text()
    with Trace(make_trace(sql)) as trace:
        first = find_findings(trace)[0]
    assert first.text.startswith("5 records are missing")
    assert json.loads(json.dumps(first.as_dict(), allow_nan=False))["cost_ms"] is None


def test_damage_that_was_left_out_comes_first(make_trace: MakeTrace) -> None:
    said = "left out: a is damaged\nb: 3 values mean nothing\nleft out: c is empty"
    more = f"UPDATE run SET value = NULL WHERE key = 'warnings'; INSERT INTO run VALUES ('warnings', '{said}');"
    found = found_in(make_trace, "run-summary", "incomplete", more)
    assert found[1].text == "2 damaged parts of the recording left out: every figure is of what was whole."


def test_the_most_expensive_come_first_and_there_are_few(make_trace: MakeTrace) -> None:
    sql = (TRACES / "prefix-miss-summary" / "trace.sql").read_text()
    with Trace(make_trace(sql)) as trace:
        found = find_findings(trace)
    assert len(found) <= MOST
    assert [f.cost_ms for f in found] == sorted((f.cost_ms for f in found), reverse=True)


@pytest.mark.parametrize("name", sorted(rules()))
def test_every_rule_asks_queries_that_there_are(name: str) -> None:
    from kvtrace.queries import catalogue

    assert set(rules()[name].queries) <= set(catalogue())


class TestCommand:
    def run(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "kvtrace", "findings", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def test_text_fits_a_terminal_and_names_the_evidence(self, make_trace: MakeTrace) -> None:
        path = make_trace((TRACES / "admission-limits" / "trace.sql").read_text())
        text = self.run(str(path))
        assert max(map(len, text.splitlines())) <= 80
        assert "kvtrace query admission-limits" in text
        assert "Try: More KV blocks" in text

    def test_json(self, make_trace: MakeTrace) -> None:
        path = make_trace((TRACES / "admission-limits" / "trace.sql").read_text())
        [finding] = [f for f in json.loads(self.run(str(path), "--json")) if f["rule"] == "waiting"]
        assert finding["evidence"] == "admission-limits"
        assert finding["basis"] == "inferred"

    def test_a_healthy_run_says_so(self, make_trace: MakeTrace) -> None:
        assert self.run(str(make_trace())).startswith("Nothing stands out")
