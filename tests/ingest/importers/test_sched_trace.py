"""Scheduler traces: objects of many makers in the same tables, and every line accounted for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvtrace.errors import KvtraceError
from kvtrace.ingest.importers.sched_trace.fields import limit_of, phase_of
from kvtrace.ingest.run import Summary, ingest
from kvtrace.ingest.sources import Sources
from kvtrace.queries import Trace
from kvtrace.queries.findings import find_findings

Ask = Callable[[str], list[tuple[Any, ...]]]
EPOCH = 1_700_000_000


@pytest.fixture
def load(tmp_path: Path, query: Callable[[Path], Ask]) -> Callable[..., tuple[Summary, Ask]]:
    """Ingest a trace of these lines: objects, or text as it is."""

    def loaded(*lines: dict[str, Any] | str) -> tuple[Summary, Ask]:
        path = tmp_path / "sched.jsonl"
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        summary = ingest(None, tmp_path / "trace.duckdb", sources=Sources(sched_trace=(path,)))

        def ask(sql: str) -> list[tuple[Any, ...]]:  # opened when asked: `Trace` wants the file to itself
            return query(summary.target)(sql)

        return summary, ask

    return loaded


SNAPSHOT = {
    "kind": "step_snapshot", "ts": EPOCH + 0.5, "step": 1, "running": 2, "waiting": 3, "free_blocks": 10,
    "total_blocks": 100,
}  # fmt: skip
DECISION = {
    "kind": "step_decision", "ts": EPOCH + 0.75, "step": 1, "num_scheduled_tokens": {"a": 16, "b": 1},
    "num_prefill_tokens": 16, "token_budget": 2048, "preempted": ["c"], "step_duration_ms": 12.5,
    "blocked_reason": "KV blocks insufficient", "head_request": "d", "blocks_needed": 12,
}  # fmt: skip


def test_a_steps_objects_become_one_step(load: Any) -> None:
    summary, ask = load(SNAPSHOT, DECISION)
    assert not summary.warnings
    assert ask(
        "SELECT step, start_ns, duration_ns, running, waiting, prefill_tokens, decode_tokens, chunked_prefill_tokens, "
        "scheduled_tokens, budget_left_tokens, free_blocks, used_blocks, preempted_requests FROM step"
    ) == [(1, EPOCH * 10**9 + 500_000_000, 12_500_000, 2, 3, 16, 1, 0, 17, 2031, 10, 90, 1)]
    assert ask(
        "SELECT admission_limit::VARCHAR, internal_id, limit_need_blocks FROM step_schedule s "
        "JOIN request r ON r.request = s.limit_request"
    ) == [("kv_insufficient", "d", 12)]
    assert ask("SELECT internal_id, scheduled_tokens FROM step_request JOIN request USING (request) ORDER BY ALL") == [
        ("a", 16),
        ("b", 1),
    ]
    assert ask("SELECT op::VARCHAR, internal_id FROM request_event JOIN request USING (request)") == [("preempt", "c")]
    assert ask("SELECT blocks, max_num_batched_tokens FROM engine") == [(100, 2048)]


def test_the_same_by_other_names_and_nested(load: Any) -> None:
    other = [
        {"event": "step_snapshot", "data": {
            "step_id": 1, "timestamp_ms": (EPOCH + 0.5) * 1000, "num_running_reqs": 2, "waiting": ["x", "y", "z"],
            "kv": {"blocks_free": 10, "blocks_total": 100}}},
        {"step_decision": {
            "iteration": 1, "scheduled_requests": [
                {"req_id": "a", "num_new_tokens": 16, "phase": "PREFILL"}, {"req_id": "b", "num_new_tokens": 1}],
            "batch.num_prefill_tokens": 16, "total_num_scheduled_tokens": 17, "max_num_batched_tokens": 2048,
            "preempted_req_ids": ["c"], "duration_us": 12500}},
    ]  # fmt: skip
    _, ask = load(*other)
    assert ask(
        "SELECT start_ns, duration_ns, running, waiting, prefill_tokens, decode_tokens, budget_left_tokens, "
        "used_blocks, preempted_requests FROM step"
    ) == [(EPOCH * 10**9 + 500_000_000, 12_500_000, 2, 3, 16, 1, 2031, 90, 1)]
    assert ask("SELECT phase::VARCHAR FROM step_request ORDER BY request") == [("prefill",), (None,)]


def test_a_total_without_a_split_still_counts(load: Any) -> None:
    """GIVEN tokens and budget but no phases THEN phases stay unknown, and the step's tokens are budget less rest."""
    _, ask = load({"kind": "step_decision", "step": 4, "total_num_scheduled_tokens": 300, "token_budget": 512})
    assert ask("SELECT prefill_tokens, decode_tokens, scheduled_tokens FROM step") == [(None, None, 300)]


def test_missing_fields_are_null_and_steps_without_a_number_are_counted(load: Any) -> None:
    _, ask = load({"kind": "step_snapshot", "running": 1}, {"kind": "step_snapshot", "waiting": 2})
    assert ask("SELECT step, running, waiting, start_ns, free_blocks, admission_limit FROM step ORDER BY 1") == [
        (1, 1, None, None, None, None), (2, None, 2, None, None, None),
    ]  # fmt: skip
    assert ask("SELECT count(*) FROM step_update") == [(0,)]


def test_lookups_give_hit_rates_by_turn(load: Any) -> None:
    """A blocked request looks up twice; without a flag, its last lookup is the one that counts, and it is said so."""
    lookup = {"kind": "prefix_cache_lookup", "request_id": "r1", "job_id": "j", "turn": 3, "num_tokens": 100}
    summary, _ = load(
        lookup | {"ts": EPOCH, "local_hit_tokens": 16, "num_external_computed_tokens": 0},
        lookup | {"ts": EPOCH + 1, "local_hit_tokens": 32, "num_external_computed_tokens": 48},
    )
    with Trace(summary.target) as trace:
        [row] = trace.query("prefix-hit-rate").to_dict("records")
        said = trace.sql("SELECT value FROM run WHERE key LIKE 'sched_trace%'").value.tolist()
    assert (row["session"], row["turn"], row["queried_tokens"], row["hit_rate"]) == ("j", 3, 100, 0.8)
    assert (row["local_hit_tokens"], row["external_hit_tokens"], row["blocked_lookups"]) == (32, 48, 1)
    assert any("the last lookup" in value for value in said)


def test_flags_of_the_trace_are_kept(load: Any) -> None:
    lookup = {"kind": "prefix_cache_lookup", "request_id": "r1", "num_tokens": 10, "hit_tokens": 0}
    _, ask = load(lookup | {"admitted": True}, lookup | {"admitted": False})
    assert ask("SELECT admitted, enabled, resumed FROM prefix_lookup ORDER BY rowid") == [
        (True, True, False), (False, True, False),
    ]  # fmt: skip


def test_every_line_is_accounted_for(load: Any) -> None:
    summary, ask = load(
        SNAPSHOT | {"mood": "good", "weather": 1}, "nonsense", "[1, 2]", {"kind": "heartbeat"}, DECISION | {"mood": 2},
        '{"kind": "step_snapshot"',
    )  # fmt: skip
    counted = dict(ask("SELECT source_table, rows FROM source_table WHERE imported IS NULL"))
    assert counted == {"heartbeat": 1, "field mood": 2, "field weather": 1}
    text = "\n".join(summary.warnings)
    lines = [json.dumps(SNAPSHOT | {"mood": "good", "weather": 1}), "nonsense", "[1, 2]"]
    second, third = len(lines[0]) + 1, len(lines[0]) + len(lines[1]) + 2
    assert f"3 lines are no JSON object and were left out: line 2, byte {second}: Expecting value; " in text
    assert f"; line 3, byte {third}: '[1, 2]' is no object; line 6, byte " in text
    assert "1 objects of other kinds" in text
    assert "2 fields mean nothing here (mood, weather)" in text


def test_values_that_are_no_count_become_null_and_are_counted(load: Any) -> None:
    summary, ask = load(SNAPSHOT | {"ts": "soon", "running": "many", "waiting": 2**40, "free_blocks": 3.0})
    assert ask("SELECT running, waiting, free_blocks FROM step_schedule") == [(None, None, 3)]
    [warning] = summary.warnings
    assert all(f"{name} 1 times" in warning for name in ("running", "waiting", "ts"))


@pytest.mark.parametrize("lines", [["{}"], ["hello"], [{"kind": "other"}], [""]])
def test_a_file_of_something_else_is_refused(lines: list[Any], load: Any, tmp_path: Path) -> None:
    with pytest.raises(KvtraceError, match=r"sched\.jsonl has .* none of them is of a known kind"):
        load(*lines)
    assert not list(tmp_path.glob("trace*"))


@pytest.mark.parametrize(
    ("text", "limit"),
    [("token budget exhausted", "token_budget"), ("max_num_seqs", "max_num_seqs"),
     ("no free KV blocks", "kv_insufficient"),
     ("", "none"), ("preempted this step", "preempted"), ("grammar", "other")],
)  # fmt: skip
def test_reasons_in_words_become_admission_limits(text: str, limit: str) -> None:
    assert limit_of(text) == limit


def test_phases_in_words() -> None:
    words = ("Chunked prefill", "PREFILL", "decode", "recompute", "?", None)
    assert [phase_of(word) for word in words] == ["chunked_prefill", "prefill", "decode", "resumed", None, None]


def _study(step: int, at: float, running: list[str], waiting: list[str], **more: Any) -> dict[str, Any]:
    """A snapshot as the study's fork writes it, before the step admits anybody."""
    return {
        "event": "step_snapshot", "step": step, "ts": EPOCH + at, "policy": "cpu_offload", "free_blocks": 960,
        "total_blocks": 1000, "num_running": len(running), "num_waiting": len(waiting), "num_pinned": 1,
        "running_req_ids": running, "waiting_req_ids": waiting,
        "running_job_ids": [name.rpartition("_")[0] for name in running],
        "waiting_job_ids": [name.rpartition("_")[0] for name in waiting], "cpu_free_blocks": 3841,
        "cpu_total_blocks": 4096, "cpu_cached_blocks": 200, "gpu_cached_blocks": 400, "pinned_blocks": 34,
        "pinned_job_ids": ["j7"], "max_num_scheduled_tokens": 2048, "max_num_running_reqs": 100, **more,
    }  # fmt: skip


def _decided(step: int, at: float, tokens: dict[str, int], **lists: list[str]) -> dict[str, Any]:
    empty: dict[str, list[str]] = {
        f"{kind}_req_ids": [] for kind in ("scheduled_new", "scheduled_resumed", "scheduled_running", "preempted")
    }
    return {
        "event": "step_decision", "step": step, "ts": EPOCH + at, "policy": "cpu_offload",
        "num_scheduled_tokens": tokens, "total_scheduled_tokens": sum(tokens.values()), **empty, **lists,
    }  # fmt: skip


def _looked_up(step: int, at: float, name: str, local: int, external: int, prompt: int) -> dict[str, Any]:
    return {
        "event": "prefix_cache_lookup", "step": step, "ts": EPOCH + at, "policy": "cpu_offload", "req_id": name,
        "job_id": name.rpartition("_")[0], "local_hit_tokens": local, "external_hit_tokens": external,
        "total_hit_tokens": local + external, "total_prompt_tokens": prompt, "num_tokens": prompt,
        "connector": "CPUOffloadConnector", "load_kv_async": False,
    }  # fmt: skip


STUDY = [
    _study(0, 0, [], ["j0_t1", "j1_t12"]),
    _looked_up(0, 0.001, "j0_t1", 96, 0, 500),
    _looked_up(0, 0.001, "j1_t12", 0, 0, 3000),  # refused, and so again in the next step
    _decided(0, 0.002, {"j0_t1": 404}, scheduled_new_req_ids=["j0_t1"]),
    _study(1, 0.05, ["j0_t1"], ["j1_t12"]),
    _looked_up(1, 0.051, "j1_t12", 0, 160, 3000),
    _decided(1, 0.052, {"j0_t1": 1, "j1_t12": 2047}, scheduled_new_req_ids=["j1_t12"]),
    _study(2, 0.11, ["j0_t1", "j1_t12"], [], free_blocks=10),
    _decided(2, 0.112, {"j1_t12": 793}, preempted_req_ids=["j0_t1"]),
    _study(3, 0.15, ["j1_t12"], ["j0_t1"]),
    _looked_up(3, 0.151, "j0_t1", 96, 300, 500),
    _decided(3, 0.152, {"j1_t12": 1, "j0_t1": 105}, scheduled_resumed_req_ids=["j0_t1"]),
    _study(5, 0.3, ["j0_t1", "j1_t12"], []),
]  # fmt: skip


def test_the_studys_layout_is_understood_whole(load: Any) -> None:
    """Times end with the next snapshot (none across the gap before step 5); who runs and waits is after admission."""
    summary, ask = load(*STUDY)
    assert not summary.warnings
    assert ask("SELECT count(*) FROM source_table WHERE imported IS NULL") == [(0,)]
    assert ask(
        "SELECT step, duration_ns, scheduled_ns - start_ns, running, waiting, prefill_tokens, chunked_prefill_tokens, "
        "decode_tokens, resumed_tokens, scheduled_tokens, preempted_requests FROM step WHERE step < 5 ORDER BY step"
    ) == [
        (0, 50_000_000, 2_000_000, 1, 1, 404, 0, 0, 0, 404, 0),
        (1, 60_000_000, 2_000_000, 2, 0, 0, 2047, 1, 0, 2048, 0),
        (2, 40_000_000, 2_000_000, 1, 1, 793, 0, 0, 0, 793, 1),
        (3, None, 2_000_000, 2, 0, 0, 0, 1, 105, 106, 0),
    ]
    assert ask("SELECT step, running, waiting, free_blocks, cached_blocks, host_free_blocks, host_total_blocks, "
               "host_cached_blocks, pinned_jobs, pinned_blocks, pinned_sessions FROM scheduler_snapshot WHERE step < 2"
    ) == [(step, step, 2 - step, 960, 400, 3841, 4096, 200, 1, 34, "j7") for step in (0, 1)]  # fmt: skip
    assert ask("SELECT internal_id, session, turn, prompt_tokens FROM request ORDER BY request") == [
        ("j0_t1", "j0", 1, 500),
        ("j1_t12", "j1", 12, 3000),
    ]
    assert ask("SELECT step, op::VARCHAR, request FROM request_event ORDER BY time_ns") == [
        (0, "schedule", 1), (1, "schedule", 2), (2, "preempt", 1), (3, "resume", 1),
    ]  # fmt: skip
    assert ask("SELECT step, request, admitted, resumed FROM prefix_lookup ORDER BY rowid") == [
        (0, 1, True, False), (0, 2, False, False), (1, 2, True, False), (3, 1, True, True),
    ]  # fmt: skip
    assert ask("SELECT max_num_seqs, max_num_batched_tokens, blocks, policy, connector, host_blocks FROM engine "
               "JOIN engine_source USING (engine_id)"
    ) == [(100, 2048, 1000, "cpu_offload", "CPUOffloadConnector", 4096)]  # fmt: skip
    assert ask("SELECT step, admission_limit::VARCHAR, admission_reason FROM step_schedule "
               "JOIN scheduler_snapshot USING (engine_id, step) ORDER BY step"
    ) == [(0, "other", "unknown"), (1, "none", "none"), (2, "preempted", "preempted"), (3, "none", "none"),
          (5, None, None)]  # fmt: skip


def test_the_file_of_requests_belongs_to_the_run_and_decides_the_phase(tmp_path: Path, query: Any) -> None:
    """GIVEN both files WHEN steps were left out of the trace THEN phases follow from what requests had computed."""
    state = {
        "step": 7, "ts": EPOCH + 1, "queue": "running", "req_id": "j_t2", "job_id": "j",
        "status": "RequestStatus.RUNNING",
        "priority": 0, "arrival_time": EPOCH - 5.25, "max_tokens": 64, "num_prompt_tokens": 900, "num_tokens": 900,
        "num_output_tokens": 0, "num_computed_tokens": 512, "num_cached_tokens": 96, "num_preemptions": 0,
        "num_external_computed_tokens": 16, "is_prefill_chunk": True, "resumable": True, "block_hashes_count": 56,
        "prompt_prefix": [11, 12], "prompt_suffix": [13], "output_tail": [14], "prompt_prefix_text": "plain words",
    }  # fmt: skip
    lines = {
        "a.steps.jsonl": [
            _study(7, 1, ["j_t2"], []),
            _decided(7, 1.01, {"j_t2": 300}, scheduled_running_req_ids=["j_t2"]),
        ],
        "a.requests.jsonl": [state],
    }
    for name, objects in lines.items():
        (tmp_path / name).write_text("".join(json.dumps(each) + "\n" for each in objects))
    files = tuple(tmp_path / name for name in lines)
    summary = ingest(None, tmp_path / "trace.duckdb", sources=Sources(sched_trace=files))
    assert not summary.warnings
    ask = query(summary.target)
    assert ask("SELECT name FROM engine_source") == [("a",)]
    assert ask("SELECT phase::VARCHAR, computed_tokens FROM step_request") == [("chunked_prefill", 512)]
    assert ask("SELECT queue, status, tokens, cached_tokens, external_computed_tokens, hashed_blocks, "
               "is_prefill_chunk, resumable, max_tokens FROM request_snapshot"
    ) == [("running", "RequestStatus.RUNNING", 900, 96, 16, 56, True, True, 64)]  # fmt: skip
    assert ask("SELECT arrival_ns, session, turn FROM request") == [((EPOCH * 1000 - 5250) * 10**6, "j", 2)]
    assert b"plain words" not in summary.target.read_bytes()
    assert ask("SELECT file, source_table FROM source_table JOIN source USING (source_id) ORDER BY ALL") == [
        ("a.requests.jsonl", "request_state"), ("a.steps.jsonl", "step_decision"), ("a.steps.jsonl", "step_snapshot"),
    ]  # fmt: skip


def test_what_a_preemption_discarded_follows_from_the_step_before(load: Any) -> None:
    """GIVEN 96 tokens found, 404 and 1 computed by the step before THEN its preemption discards 501."""
    summary, _ = load(*STUDY)
    with Trace(summary.target) as trace:
        asked = (
            "SELECT step, computed_tokens, local_cached_tokens, external_cached_tokens FROM request_event ORDER BY step"
        )
        assert [tuple(row.values()) for row in trace.sql(asked, format="arrow").to_pylist()] == [
            (0, None, 96, 0), (1, None, 0, 160), (2, 501, None, None), (3, None, 96, 300),
        ]  # fmt: skip
        [text] = [found.text for found in find_findings(trace) if found.rule == "preemption"]
    assert text.startswith("1 preemption of 1 request discarded the KV of 501 tokens; 105 tokens were computed again, ")


def test_a_preemption_of_which_nothing_is_known_claims_nothing(load: Any) -> None:
    summary, _ = load(SNAPSHOT, DECISION)
    with Trace(summary.target) as trace:
        [text] = [found.text for found in find_findings(trace) if found.rule == "preemption"]
    assert text.startswith("1 preemption of 1 request discarded KV, the trace does not say how much")
    assert "waited" not in text


def test_a_lookups_connector_is_kept_with_what_it_loads_beside_the_steps(load: Any) -> None:
    waits = _looked_up(4, 0.2, "j0_t1", 96, 304, 500) | {"load_kv_async": True}
    _, ask = load(STUDY[0], STUDY[1], waits)
    assert ask(
        "SELECT step, request, connector, total_hit_tokens, prompt_tokens, load_kv_async FROM scheduler_lookup"
    ) == [
        (0, 1, "CPUOffloadConnector", 96, 500, False), (4, 1, "CPUOffloadConnector", 400, 500, True),
    ]  # fmt: skip


def test_a_step_that_ends_before_it_begins_gets_no_end(load: Any) -> None:
    summary, ask = load(SNAPSHOT, DECISION | {"step_duration_ms": -3})
    assert ask("SELECT duration_ns FROM step") == [(None,)]
    assert summary.warnings == ["sched: 1 steps have times that cannot be and got no end: step 1"]


@pytest.mark.parametrize(
    "word", ["kv-after-run", "kv-insuf", "kv-low", "kv-marginal", "alloc-exhausted", "alloc-rejected"]
)
def test_the_viewers_words_for_want_of_blocks(word: str) -> None:
    assert (limit_of(word), limit_of("tok-budget"), limit_of("max-seqs"), limit_of("unknown")) == (
        "kv_insufficient", "token_budget", "max_num_seqs", "other",
    )  # fmt: skip


def test_the_scheduling_queries_answer_from_the_studys_trace(load: Any) -> None:
    summary, _ = load(*STUDY)
    with Trace(summary.target) as trace:
        for name in ("step-timeline", "admission-limits", "token-budget-fill", "pass-throughput"):
            assert len(trace.query(name)), name
