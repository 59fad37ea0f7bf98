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
    assert "3 lines are no JSON object and were left out: line 2, 3, 6" in text
    assert "1 objects of other kinds" in text
    assert "2 fields mean nothing here (mood, weather)" in text


def test_values_that_are_no_count_become_null_and_are_counted(load: Any) -> None:
    summary, ask = load(SNAPSHOT | {"running": "many", "waiting": 2**40, "free_blocks": 3.0})
    assert ask("SELECT running, waiting, free_blocks FROM step_schedule") == [(None, None, 3)]
    assert any("running 1 times" in warning and "waiting 1 times" in warning for warning in summary.warnings)


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
