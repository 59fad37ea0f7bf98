from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kvtrace.errors import KvtraceError
from kvtrace.viewer.encode import undelta
from kvtrace.viewer.export import export

from .simulate import create_trace, insert


def ask(trace: Path, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(trace), read_only=True) as connection:
        return connection.sql(query).fetchall()


def steps_of(document: dict[str, Any], engine: int = 0) -> dict[str, Any]:
    columns: dict[str, Any] = document["engines"][engine]["steps"]["columns"]
    return columns | {name: undelta(columns[name]) for name in ("step", "start_ns")}


def replay_free_cached(trace: Path) -> list[int]:
    """Free blocks that are findable after each `schedule`, followed block by block."""
    events = ask(trace, "SELECT time_ns, block_id, op::VARCHAR, ref_count FROM block_event ORDER BY rowid")
    references: dict[int, int] = defaultdict(int)
    findable: set[int] = set()
    expected, position = [], 0
    for (scheduled_ns,) in ask(trace, "SELECT scheduled_ns FROM step_schedule ORDER BY step"):
        while position < len(events) and events[position][0] <= scheduled_ns:
            _, block, op, references_after = events[position]
            position += 1
            if op == "reset":
                findable.clear()
                continue
            references[block] = references_after
            if op == "cache":
                findable.add(block)
            elif op == "evict":
                findable.discard(block)
        expected.append(sum(references[block] == 0 for block in findable))
    return expected


def test_every_step_is_in_the_document_as_it_is_in_the_trace(trace: Path) -> None:
    document = export(trace)
    columns, origin = steps_of(document), int(document["origin_ns"])
    names = ["step", "end_ns", "duration_ns", "decode_tokens", "resumed_tokens", "running", "waiting", "used_blocks"]
    expected = ask(trace, f"SELECT {', '.join(names)} FROM step ORDER BY step")
    found = zip(*(columns[name] for name in names), strict=True)
    assert [(step, end + origin, *rest) for step, end, *rest in found] == expected


def test_a_steps_bar_is_the_time_it_added(trace: Path) -> None:
    document = export(trace)
    columns, origin = steps_of(document), int(document["origin_ns"])
    expected = ask(trace, "SELECT end_ns - interval_ns FROM step ORDER BY step")
    assert [(start + origin,) for start in columns["start_ns"]] == expected


def test_free_cached_blocks_are_those_a_replay_of_the_blocks_gives(trace: Path) -> None:
    document = export(trace)
    assert steps_of(document)["free_cached_blocks"] == replay_free_cached(trace)
    assert document["engines"][0]["steps"]["cache_mismatches"] == 0


def test_a_reset_of_the_prefix_cache_leaves_no_block_findable(tmp_path: Path) -> None:
    # GIVEN a trace with a reset after which nothing else happens but an idle step
    path = create_trace(tmp_path / "trace.duckdb")
    with duckdb.connect(str(path)) as connection:
        (last,) = connection.sql("SELECT max(end_ns) FROM step_update").fetchall()[0]
        facts = {"engine_id": 1, "step": 9999}
        insert(connection, "block_event", [{**facts, "time_ns": last + 10, "op": "reset", "pool": 0}])
        more = {"start_ns": last + 20, "scheduled_ns": last + 30, "used_blocks": 0, "free_blocks": 88}
        insert(connection, "step_schedule", [{**facts, **more, "cached_blocks": 0, "admission_limit": "none"}])
    # THEN that step has free blocks, and none of them is cached
    document = export(path)
    assert steps_of(document)["free_cached_blocks"] == replay_free_cached(path)
    assert steps_of(document)["free_cached_blocks"][-1] == 0
    assert document["engines"][0]["steps"]["cache_mismatches"] == 0


def test_a_recorded_cache_size_that_the_block_events_contradict_is_counted(tmp_path: Path) -> None:
    path = create_trace(tmp_path / "trace.duckdb")
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE step_schedule SET cached_blocks = cached_blocks + 1 WHERE step <= 7")
    assert export(path)["engines"][0]["steps"]["cache_mismatches"] == 7


def test_too_many_steps_share_bars_that_show_the_largest_step_and_sum_what_happened(trace: Path) -> None:
    steps = export(trace, max_step_rows=100)["engines"][0]["steps"]
    assert steps["total"] == sum(steps["columns"]["steps"]) > 100
    assert len(steps["columns"]["steps"]) <= 100
    bars = ask(
        trace,
        f"""
        SELECT max(scheduled_tokens), max(waiting), max(used_blocks), sum(preempted_requests)::INT
        FROM step GROUP BY (step - 1) // {steps["per_row"]} ORDER BY (step - 1) // {steps["per_row"]}
        """,
    )
    columns = steps["columns"]
    phases = ("prefill", "chunked_prefill", "decode", "resumed")
    tokens = [sum(each) for each in zip(*(columns[f"{phase}_tokens"] for phase in phases), strict=True)]
    names = ("waiting", "used_blocks", "preempted_requests")
    assert list(zip(tokens, *(columns[name] for name in names), strict=True)) == bars
    assert (sum(columns["evicted_blocks"]),) == ask(trace, "SELECT count(*) FROM block_event WHERE op = 'evict'")[0]
    used_and_free = zip(columns["used_blocks"], columns["free_blocks"], strict=True)
    assert {used + free for used, free in used_and_free} == {88}


def test_too_many_requests_leave_the_longest(trace: Path) -> None:
    requests = export(trace, max_requests=5)["engines"][0]["requests"]
    longest = ask(trace, "SELECT request FROM request ORDER BY finished_ns - queued_ns DESC LIMIT 5")
    assert requests["total"] == 40
    assert sorted(requests["columns"]["request"]) == sorted(request for (request,) in longest)


def test_lanes_last_from_queue_to_end_without_a_gap(trace: Path) -> None:
    document = export(trace)
    requests, origin = document["engines"][0]["requests"], int(document["origin_ns"])
    segments = requests["segments"]
    lanes = defaultdict(list)
    for row, start, length in zip(
        undelta(segments["row"]), undelta(segments["start_ns"]), segments["duration_ns"], strict=True
    ):
        lanes[requests["columns"]["request"][row]].append((start + origin, start + origin + length))
    for request, queued, finished in ask(trace, "SELECT request, queued_ns, finished_ns FROM request"):
        lane = lanes[request]
        assert (lane[0][0], lane[-1][1]) == (queued, finished)
        assert all(before[1] == after[0] for before, after in pairwise(lane))


def test_resumed_time_ends_with_the_last_step_that_recomputed(trace: Path) -> None:
    document = export(trace)
    requests, origin = document["engines"][0]["requests"], int(document["origin_ns"])
    segments = requests["segments"]
    resumed = document["states"].index("resumed")
    found = {
        (requests["columns"]["request"][row], start + length + origin)
        for row, state, start, length in zip(
            undelta(segments["row"]),
            segments["state"],
            undelta(segments["start_ns"]),
            segments["duration_ns"],
            strict=True,
        )
        if state == resumed
    }
    preempted_again = """
        SELECT t.request, t.time_ns FROM request_event t JOIN step_request r
        ON r.request = t.request AND r.phase = 'resumed' AND r.step = t.step - 1 WHERE t.op = 'preempt'
    """
    ends = """
        SELECT r.request, u.end_ns FROM step_request r JOIN step_update u USING (engine_id, step)
        WHERE r.phase = 'resumed' AND NOT EXISTS (
            SELECT 1 FROM step_request n WHERE n.request = r.request AND n.phase = 'resumed' AND n.step = r.step + 1)
    """
    assert found <= set(ask(trace, ends)) | set(ask(trace, preempted_again))
    assert len(found) >= 10


def test_a_resumed_request_that_found_all_its_kv_in_the_cache_goes_on_at_once(tmp_path: Path) -> None:
    path = create_trace(tmp_path / "trace.duckdb")
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE step_request SET phase = 'decode' WHERE phase = 'resumed'")
    document = export(path)
    assert document["states"].index("resumed") not in document["engines"][0]["requests"]["segments"]["state"]
    assert document["states"].index("preempted") in document["engines"][0]["requests"]["segments"]["state"]


def test_no_machine_path_of_the_model_is_passed_on(tmp_path: Path) -> None:
    path = create_trace(tmp_path / "trace.duckdb")
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE engine SET model = '/home/someone/models/tiny-llama/'")
    assert export(path)["engines"][0]["facts"]["model"] == "tiny-llama"


def test_totals_are_of_the_whole_trace_however_little_is_drawn(trace: Path) -> None:
    totals = export(trace, max_step_rows=3, max_requests=1)["engines"][0]["totals"]
    assert totals["requests"] == 40
    assert (totals["output_tokens"],) == ask(trace, "SELECT sum(output_tokens)::INT FROM request")[0]
    assert (totals["preemptions"],) == ask(trace, "SELECT sum(preemptions)::INT FROM request")[0]
    assert (totals["recomputed_tokens"],) == ask(trace, "SELECT sum(resumed_tokens)::INT FROM step")[0]
    hits = ask(trace, "SELECT sum(local_cached_tokens)::INT, sum(prompt_tokens)::INT FROM request")[0]
    assert (totals["prefix_hit_tokens"], totals["prefix_queried_tokens"]) == hits
    assert sum(totals["limits"].values()) == totals["steps"]


def test_what_went_wrong_with_a_recording_is_noted(tmp_path: Path) -> None:
    path = create_trace(tmp_path / "trace.duckdb")
    with duckdb.connect(str(path)) as connection:
        hook = {"process_id": 1, "hook": "m:C.f", "state": "absent", "detail": "no evictions"}
        insert(connection, "hook", [hook, {**hook, "hook": "m:C.g", "state": "installed"}])
        insert(connection, "stream", [{"process_id": 1, "event": "block_event", "torn": 1, "dropped": 1234}])
        insert(connection, "join_count", [{"name": "steps with results", "matched": 5, "unmatched": 2}])
        connection.execute("UPDATE process SET stopped = 'the disk is full'")
        connection.execute("UPDATE run SET value = '3' WHERE key = 'exit_code'")
    texts = "\n".join(note["text"] for note in export(path)["notes"])
    for expected in ("m:C.f: not found", "no evictions", "1,234 records", "disk is full", "exit code 3", "2 rows"):
        assert expected in texts
    assert "m:C.g" not in texts


def test_a_recording_cut_short_is_exported_up_to_there(tmp_path: Path) -> None:
    # GIVEN a trace whose recording ended in the middle: no results of the last steps, no ends of requests
    path = create_trace(tmp_path / "trace.duckdb")
    with duckdb.connect(str(path)) as connection:
        (cut,) = connection.sql("SELECT start_ns FROM step_schedule WHERE step = 600").fetchall()[0]
        connection.execute(f"DELETE FROM step_schedule WHERE start_ns > {cut}")
        connection.execute(f"DELETE FROM step_update WHERE end_ns >= {cut}")
        connection.execute(f"DELETE FROM request_event WHERE time_ns >= {cut}")
        connection.execute(f"DELETE FROM block_event WHERE time_ns >= {cut}")
        connection.execute(f"DELETE FROM request WHERE queued_ns >= {cut}")
        connection.execute(f"UPDATE request SET finished_ns = NULL, finish_reason = NULL WHERE finished_ns >= {cut}")
        connection.execute("DELETE FROM run WHERE key = 'started_ns'")
    document = export(path)
    engine = document["engines"][0]
    assert engine["steps"]["columns"]["end_ns"][-1] is None
    assert None in engine["requests"]["columns"]["finished_ns"]
    assert (document["origin"], document["first_ns"]) == ("first event", 0)
    segments = engine["requests"]["segments"]
    ends = map(sum, zip(undelta(segments["start_ns"]), segments["duration_ns"], strict=True))
    assert max(ends) == document["last_ns"]


def test_engines_share_the_limits(tmp_path: Path) -> None:
    path = create_trace(tmp_path / "trace.duckdb", engines=2)
    engines = export(path, max_step_rows=200, max_requests=10)["engines"]
    assert [engine["facts"]["engine_id"] for engine in engines] == [1, 2]
    assert all(len(engine["steps"]["columns"]["steps"]) <= 100 for engine in engines)
    assert all(len(engine["requests"]["columns"]["request"]) == 5 for engine in engines)


def test_a_trace_of_nothing_has_no_engines(tmp_path: Path) -> None:
    document = export(create_trace(tmp_path / "trace.duckdb", engines=0))
    assert (document["engines"], document["first_ns"]) == ([], None)


def test_a_trace_of_another_version_is_refused(tmp_path: Path) -> None:
    path = create_trace(tmp_path / "trace.duckdb", engines=0)
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE run SET value = '99' WHERE key = 'trace_version'")
    with pytest.raises(KvtraceError, match=r"99.*1"):
        export(path)
