"""A recording against vLLM's own word: its KV events, its counters, its outputs."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.agreement import compare
from tests.vllm.conftest import Recorded, rows

RUNS = ["cached", "uncached", "tensor_parallel", "served", "subclassed"]


@pytest.fixture(params=RUNS)
def recorded(request: pytest.FixtureRequest) -> Recorded:
    return request.getfixturevalue(request.param)


def hashes(recorded: Recorded, op: str) -> Counter[int]:
    return Counter(dict(rows(recorded, f"SELECT block_hash, count(*) FROM block_event WHERE op = '{op}' GROUP BY 1")))


def test_the_page_the_report_and_the_queries_agree(recorded: Recorded) -> None:
    compared = compare(recorded.run / "trace.duckdb")
    assert compared["request-states"] > 0 < compared["kv-utilisation"]


def test_stored_and_removed_blocks_equal_the_kv_events_one_to_one(recorded: Recorded) -> None:
    events = recorded.truth["events"]
    if events is None:
        assert not hashes(recorded, "cache")
        assert not hashes(recorded, "evict")
        return
    assert hashes(recorded, "cache") == Counter(dict(events["stored"]))
    assert hashes(recorded, "evict") == Counter(dict(events["removed"]))
    assert events["removed"], "the workload is meant to evict"


def test_prefix_cache_tokens_equal_the_counters(recorded: Recorded) -> None:
    [(queried, hit)] = rows(
        recorded,
        "SELECT coalesce(sum(queried_tokens), 0), coalesce(sum(local_hit_tokens), 0) FROM prefix_lookup "
        "WHERE admitted AND enabled AND NOT resumed",
    )
    counters = recorded.truth["counters"]
    assert (queried, hit) == (counters["vllm:prefix_cache_queries"], counters["vllm:prefix_cache_hits"])


def test_preemptions_equal_the_counter(recorded: Recorded) -> None:
    [(preemptions,)] = rows(recorded, "SELECT count(*) FROM request_event WHERE op = 'preempt'")
    assert preemptions == recorded.truth["counters"]["vllm:num_preemptions"]
    assert preemptions > 0, "the workload is meant to preempt"
    assert rows(recorded, "SELECT sum(preempted_requests) FROM step_schedule") == [(preemptions,)]
    assert rows(recorded, "SELECT sum(preemptions) FROM request") == [(preemptions,)]


def test_token_counts_equal_every_request_output(recorded: Recorded) -> None:
    found = {
        external: (prompt, output, local + external_cached, reason, session, turn)
        for external, prompt, output, local, external_cached, reason, session, turn in rows(
            recorded,
            "SELECT external_id, prompt_tokens, output_tokens, local_cached_tokens, external_cached_tokens, "
            "finish_reason::VARCHAR, session, turn FROM request",
        )
    }
    expected = {
        output["external_id"]: (
            output["prompt_tokens"],
            output["output_tokens"],
            output["cached_tokens"],
            output["finish_reason"],
            output["session"],
            output["turn"],
        )
        for output in recorded.truth["outputs"]
    }
    assert found == expected


def test_reference_counts_and_free_blocks_replay(recorded: Recorded) -> None:
    """Replays every block change: counts never below zero, owners share a hash, the pool's free count holds."""
    [(blocks,)] = rows(recorded, "SELECT blocks FROM engine")
    owners: dict[int, Counter[int]] = {}
    hashed: set[int] = set()
    changes = rows(
        recorded,
        "SELECT time_ns, block_id, op::VARCHAR, ref_count, request FROM block_event WHERE pool = 0 ORDER BY rowid",
    )
    steps = rows(recorded, "SELECT scheduled_ns, free_blocks, used_blocks, cached_blocks FROM step_schedule ORDER BY 1")
    checked = 0
    for moment, free, used, cached_blocks in steps:
        while checked < len(changes) and changes[checked][0] <= moment:
            _, block, op, ref_count, request = changes[checked]
            checked += 1
            held = owners.setdefault(block, Counter())
            if op in ("allocate", "hit"):
                assert op == "hit" or not held, f"block {block} was allocated while held"
                assert op == "allocate" or block in hashed, f"block {block} was hit without a hash"
                held[request] += 1
            elif op == "free":
                held[request] -= 1
                assert held[request] >= 0, f"request {request} freed block {block} that it does not hold"
                held += Counter()
            elif op == "cache":
                hashed.add(block)
            elif op == "evict":
                hashed.discard(block)
            owners[block] = held
            assert sum(held.values()) == ref_count
            assert len(held) < 2 or block in hashed, f"block {block} has two owners and no hash"
        in_use = sum(1 for held in owners.values() if held)
        assert (in_use, blocks - in_use, len(hashed)) == (used, free, cached_blocks)
    assert checked, "nothing was replayed"


def test_block_tables_hold_what_their_requests_hold(recorded: Recorded) -> None:
    """Every block a step sends to the workers is, at that moment, referenced for that request."""
    wrong = rows(
        recorded,
        """
        WITH holds AS (
            SELECT block_id, request, op, step, rowid AS r FROM block_event WHERE op IN ('allocate', 'hit', 'free')
        )
        SELECT count(*) FROM block_table t WHERE NOT EXISTS (
            SELECT 1 FROM holds h WHERE h.block_id = t.block_id AND h.request = t.request
            AND h.op IN ('allocate', 'hit') AND h.step <= t.step)
        """,
    )
    assert wrong == [(0,)]
    assert rows(recorded, "SELECT count(*) > 0 FROM block_table") == [(True,)]


def test_block_tables_cover_every_token_of_every_step(recorded: Recorded) -> None:
    """Put together from the deltas, a request's table has one block for every block_size tokens, none missing."""
    wrong = rows(
        recorded,
        """
        WITH have AS (
            SELECT step, request, count(*) AS blocks, max(position) + 1 AS length, count_if(written) AS written
            FROM step_block GROUP BY ALL
        )
        SELECT r.step, r.request FROM step_request r LEFT JOIN have h USING (step, request), engine e
        WHERE coalesce(h.blocks, 0) <> ceil((r.computed_tokens + r.scheduled_tokens) / e.block_size_tokens)
           OR h.length <> h.blocks
           OR h.written <> h.blocks - r.computed_tokens // e.block_size_tokens
        """,
    )
    assert wrong == []


def test_without_gpu_windows_every_block_of_a_step_is_accessed_in_the_steps_time(recorded: Recorded) -> None:
    [(workers,)] = rows(recorded, "SELECT count(*) FROM process WHERE contains(roles, 'worker')")
    [(blocks, written)] = rows(recorded, "SELECT count(*), count_if(written) FROM step_block JOIN step USING (step)")
    [found] = rows(
        recorded,
        """
        SELECT count_if(kind = 'attention'), count_if(kind = 'write'), count(layer), count_if(observed),
            count_if(a.start_ns < s.scheduled_ns OR a.end_ns > s.end_ns)
        FROM kv_access a JOIN step s USING (engine_id, step)
        """,
    )
    assert found == (workers * blocks, workers * written, 0, 0, 0)
    assert written > 0


def test_blocks_of_running_requests_are_those_in_use_and_their_waste_is_what_is_not_stored(recorded: Recorded) -> None:
    """kv-fragmentation against the block tables, entry by entry, in every step that ran all running requests."""
    found = {row["step"]: row for row in recorded.trace.query("kv-fragmentation", format="arrow").to_pylist()}
    tables = rows(
        recorded,
        """
        SELECT b.step, count(DISTINCT b.block_id), count(*), sum(filled) FROM (
            SELECT step, block_id, request,
                max(least(e.block_size_tokens,
                    r.computed_tokens + r.scheduled_tokens - b.position * e.block_size_tokens)) OVER one
                    / count(*) OVER one AS filled
            FROM step_block b JOIN step_request r USING (engine_id, step, request) JOIN engine e USING (engine_id)
            WINDOW one AS (PARTITION BY step, block_id)
        ) b JOIN step_schedule s USING (step)
        WHERE s.running = s.prefill_requests + s.chunked_prefill_requests + s.decode_requests + s.resumed_requests
        GROUP BY b.step
        """,
    )
    wrong = [
        (step, used, entries, stored, found[step])
        for step, used, entries, stored in tables
        if (used, entries) != (found[step]["used_blocks"], found[step]["table_blocks"])
        or abs(stored - found[step]["stored_tokens"]) > 1e-6
    ]
    assert wrong == []
    assert len(tables) > 50


def test_shares_add_up_to_their_step(recorded: Recorded) -> None:
    wrong = rows(
        recorded,
        """
        SELECT s.step FROM step s LEFT JOIN (
            SELECT step, count(*) AS requests, sum(scheduled_tokens) AS tokens FROM step_request GROUP BY step
        ) r USING (step)
        WHERE s.scheduled_requests <> coalesce(r.requests, 0) OR s.scheduled_tokens <> coalesce(r.tokens, 0)
           OR s.budget_tokens - s.budget_left_tokens <> s.scheduled_tokens
        """,
    )
    assert wrong == []


def test_every_forward_pass_has_its_step_on_every_worker(recorded: Recorded) -> None:
    workers = rows(recorded, "SELECT count(*) FROM process WHERE contains(roles, 'worker')")[0][0]
    [(steps,)] = rows(recorded, "SELECT count(*) FROM step WHERE scheduled_tokens > 0")
    # The engine waits for the output of rank 0 only: another rank may return from a step a little after it ended.
    matched = rows(
        recorded,
        "SELECT f.process_id, count(*) FROM forward f JOIN step s ON f.engine_id = s.engine_id AND f.step = s.step "
        "JOIN process p USING (process_id) WHERE f.tokens = s.scheduled_tokens AND f.tokens > 0 "
        "AND f.start_ns >= s.scheduled_ns AND (f.end_ns <= s.end_ns OR p.tp_rank > 0) GROUP BY 1",
    )
    assert sorted(count for _, count in matched) == [steps] * workers
    assert workers == rows(recorded, "SELECT max(tp_size) FROM engine")[0][0]


def test_times_of_a_request_are_in_order(recorded: Recorded) -> None:
    wrong = rows(
        recorded,
        "SELECT request FROM request WHERE NOT (arrival_ns - 1000000 <= queued_ns AND queued_ns <= scheduled_ns "
        "AND scheduled_ns < first_token_ns AND first_token_ns <= finished_ns)",
    )
    assert wrong == []


def test_nothing_was_lost(recorded: Recorded) -> None:
    assert rows(recorded, "SELECT * FROM stream WHERE dropped > 0 OR torn > 0") == []
    assert rows(recorded, "SELECT * FROM hook WHERE state <> 'installed'") == []
    assert rows(recorded, "SELECT name, unmatched FROM join_count WHERE unmatched > 0") == []
