from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import duckdb
import pytest

from kvtrace.errors import KvtraceError
from kvtrace.ingest.run import ingest
from kvtrace.ingest.sources import Sources
from kvtrace.viewer import requests, steps
from kvtrace.viewer.chunks import MemorySink

from .exported import Exported
from .pages import rows
from .simulate import create_trace, insert


def replay_free_cached(trace: Path) -> list[int]:
    """Free blocks that are findable after each `schedule`, followed block by block."""
    events = rows(trace, "SELECT time_ns, block_id, op::VARCHAR, ref_count FROM block_event ORDER BY rowid")
    references: dict[int, int] = defaultdict(int)
    findable: set[int] = set()
    expected, position = [], 0
    for (scheduled_ns,) in rows(trace, "SELECT scheduled_ns FROM step_schedule ORDER BY step"):
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


def test_every_step_is_in_the_page_as_it_is_in_the_trace(trace: Path) -> None:
    exported = Exported(trace)
    names = ["step", "end_ns", "duration_ns", "decode_tokens", "resumed_tokens", "running", "waiting", "used_blocks"]
    expected = rows(trace, f"SELECT {', '.join(names)} FROM step ORDER BY step")
    found = zip(*(exported.steps[name] for name in names), strict=True)
    assert [(step, end + exported.origin, *rest) for step, end, *rest in found] == expected


def test_a_steps_bar_is_the_time_it_added(trace: Path) -> None:
    exported = Exported(trace)
    expected = rows(trace, "SELECT end_ns - interval_ns FROM step ORDER BY step")
    assert [(start + exported.origin,) for start in exported.steps["start_ns"]] == expected


def test_a_step_tells_the_tokens_that_its_admissions_found_in_the_cache(trace: Path) -> None:
    columns = Exported(trace).steps
    expected = rows(
        trace,
        """SELECT s.step, coalesce(sum(local_cached_tokens), 0)::INT FROM step s
        LEFT JOIN request_event e ON e.step = s.step AND op IN ('schedule', 'resume')
        GROUP BY s.step ORDER BY s.step""",
    )
    assert list(zip(columns["step"], columns["cached_tokens"], strict=True)) == expected


def test_free_cached_blocks_are_those_a_replay_of_the_blocks_gives(trace: Path) -> None:
    exported = Exported(trace)
    assert exported.steps["free_cached_blocks"] == replay_free_cached(trace)
    assert exported.engine["steps"]["cache_mismatches"] == 0


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
    exported = Exported(path)
    assert exported.steps["free_cached_blocks"] == replay_free_cached(path)
    assert exported.steps["free_cached_blocks"][-1] == 0
    assert exported.engine["steps"]["cache_mismatches"] == 0


def test_a_recorded_cache_size_that_the_block_events_contradict_is_counted(tmp_path: Path) -> None:
    path = create_trace(tmp_path / "trace.duckdb")
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE step_schedule SET cached_blocks = cached_blocks + 1 WHERE step <= 7")
    assert Exported(path).engine["steps"]["cache_mismatches"] == 7


def test_many_steps_also_come_as_bars_that_show_the_largest_step_and_sum_what_happened(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("OVERVIEW_BARS", 100), ("OVERVIEW_FROM", 1000), ("CHUNK_STEPS", 500)):
        monkeypatch.setattr(steps, name, value)
    exported = Exported(trace)
    part = exported.engine["steps"]
    overview, details = part["levels"]
    assert [reference["rows"] for reference in details] == [500, 500, 240]
    assert [reference["first"] for reference in details] == [1, 501, 1001]
    columns, per_bar = exported.read(overview), part["per_bar"]
    assert (sum(columns["steps"]), len(columns["steps"]), per_bar) == (1240, 96, 13)
    bars = rows(
        trace,
        f"""
        SELECT max(scheduled_tokens), max(waiting), max(used_blocks), sum(preempted_requests)::INT
        FROM step GROUP BY (step - 1) // {per_bar} ORDER BY (step - 1) // {per_bar}
        """,
    )
    phases = ("prefill", "chunked_prefill", "decode", "resumed")
    tokens = [sum(each) for each in zip(*(columns[f"{phase}_tokens"] for phase in phases), strict=True)]
    names = ("waiting", "used_blocks", "preempted_requests")
    assert list(zip(tokens, *(columns[name] for name in names), strict=True)) == bars
    assert (sum(columns["evicted_blocks"]),) == rows(trace, "SELECT count(*) FROM block_event WHERE op = 'evict'")[0]


def test_requests_shares_are_cut_as_the_steps_are(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "CHUNK_STEPS", 500)
    exported = Exported(trace)
    columns = exported.read(exported.engine["shares"])
    names = ("step", "request", "scheduled_tokens")
    expected = rows(trace, f"SELECT {', '.join(names)} FROM step_request ORDER BY step, request")
    assert list(zip(*(columns[name] for name in names), strict=True)) == expected
    assert [(each["first"], each["last"]) for each in exported.engine["shares"]] == [
        (1, 500),
        (501, 1000),
        (1001, 1240),
    ]


def test_of_many_requests_an_overview_has_the_longest(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "CHUNK_REQUESTS", 15)
    monkeypatch.setattr(requests, "_LONGEST", requests._LONGEST.replace("LIMIT 2000", "LIMIT 5"))
    exported = Exported(trace)
    overview, details = exported.engine["requests"]["levels"]
    longest = rows(trace, "SELECT request FROM request ORDER BY finished_ns - queued_ns DESC LIMIT 5")
    assert sorted(exported.read(overview)["request"]) == sorted(request for (request,) in longest)
    assert [reference["rows"] for reference in details] == [15, 15, 10]
    assert sorted(exported.requests["request"]) == [
        row for (row,) in rows(trace, "SELECT request FROM request ORDER BY 1")
    ]


def test_of_requests_without_an_end_an_overview_has_some_of_all_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN 400 arrivals, 1 s apart WHEN the page lists 10 of them THEN one in every 80 s is among them."""
    arrivals = "".join(f'{{"timestamp": {n}000, "input_length": 5, "output_length": 1}}\n' for n in range(400))
    (tmp_path / "mooncake.jsonl").write_text(arrivals)
    trace = ingest(None, tmp_path / "t.duckdb", sources=Sources(requests=(tmp_path / "mooncake.jsonl",))).target
    monkeypatch.setattr(requests, "CHUNK_REQUESTS", 15)
    monkeypatch.setattr(requests, "_LONGEST", requests._LONGEST.replace("LIMIT 2000", "LIMIT 10"))
    exported = Exported(trace)
    listed = exported.read(exported.engine["requests"]["levels"][0])["arrival_ns"]
    assert len(listed) == 10
    assert {arrival // (80 * 10**9) for arrival in listed} == set(range(5))


def test_gpus_are_active_where_anything_runs_on_them(tmp_path: Path) -> None:
    """GIVEN GPU 0 busy from 0 to 150 us on two streams that overlap, GPU 1 from 100 to 200 us THEN 250 of 400 us."""
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": gpu, "tid": stream, "ts": start, "dur": 100,
         "args": {"device": gpu, "stream": stream}}
        for gpu, stream, start in ((0, 7, 0), (0, 8, 50), (1, 7, 100))
    ]  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps({"traceEvents": events}))
    trace = ingest(None, tmp_path / "t.duckdb", sources=Sources(torch=(tmp_path / "a.json",))).target
    kernels = Exported(trace).engine["kernels"]
    assert (kernels["active_ns"], kernels["gpus"], kernels["measured_ns"]) == (250_000, 2, 200_000)
    assert kernels["busy_ns"] == {"other": 300_000}


def test_lanes_last_from_queue_to_end_without_a_gap(trace: Path) -> None:
    exported = Exported(trace)
    segments, names = exported.segments, exported.requests["request"]
    lanes = defaultdict(list)
    for row, start, length in zip(segments["row"], segments["start_ns"], segments["duration_ns"], strict=True):
        lanes[names[row]].append((start + exported.origin, start + exported.origin + length))
    for request, queued, finished in rows(trace, "SELECT request, queued_ns, finished_ns FROM request"):
        lane = lanes[request]
        assert (lane[0][0], lane[-1][1]) == (queued, finished)
        assert all(before[1] == after[0] for before, after in pairwise(lane))


def test_resumed_time_ends_with_the_last_step_that_recomputed(trace: Path) -> None:
    exported = Exported(trace)
    segments, names = exported.segments, exported.requests["request"]
    resumed = exported.run["states"].index("resumed")
    found = {
        (names[row], start + length + exported.origin)
        for row, state, start, length in zip(
            segments["row"], segments["state"], segments["start_ns"], segments["duration_ns"], strict=True
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
    assert found <= set(rows(trace, ends)) | set(rows(trace, preempted_again))
    assert len(found) >= 10


def test_a_resumed_request_that_found_all_its_kv_in_the_cache_goes_on_at_once(tmp_path: Path) -> None:
    path = create_trace(tmp_path / "trace.duckdb")
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE step_request SET phase = 'decode' WHERE phase = 'resumed'")
    exported = Exported(path)
    states = exported.run["states"]
    assert states.index("resumed") not in exported.segments["state"]
    assert states.index("preempted") in exported.segments["state"]


def test_a_preemption_tells_whom_it_was_for_and_how_many_blocks_others_got(trace: Path) -> None:
    # GIVEN, from a walk through the block events, the first allocation after a victim let go of its blocks, and which
    # of those blocks others got, all in the same step
    freed: dict[tuple[int, int], set[int]] = defaultdict(set)
    gainer: dict[tuple[int, int], int] = {}
    taken: dict[tuple[int, int], set[int]] = defaultdict(set)
    victims = set(rows(trace, "SELECT request, step FROM request_event WHERE op = 'preempt'"))
    for block, step, op, request in rows(
        trace, "SELECT block_id, step, op::VARCHAR, request FROM block_event ORDER BY rowid"
    ):
        if op == "free" and (request, step) in victims:
            freed[request, step].add(block)
        for victim in [key for key in freed if key[1] == step and op == "allocate" and key[0] != request]:
            gainer.setdefault(victim, request)
            taken[victim] |= {block} & freed[victim]
    exported = Exported(trace)
    columns = exported.read(exported.engine["requests"]["preemptions"])
    found = {
        (victim, step): (whom, blocks)
        for victim, step, whom, blocks in zip(
            *(columns[name] for name in ("request", "step", "preempted_for", "taken_blocks")), strict=True
        )
    }
    assert found == {victim: (gainer.get(victim), len(taken[victim])) for victim in victims}
    assert sum(whom is not None for whom, _ in found.values()) >= 3


def test_a_request_tells_what_it_waited_for_at_the_head_of_the_queue(trace: Path) -> None:
    requests = Exported(trace).requests
    found = {
        request: (steps, step)
        for request, steps, step in zip(requests["request"], requests["head_steps"], requests["wait_step"], strict=True)
        if steps is not None
    }
    expected = rows(
        trace,
        """SELECT limit_request, count(*), min(step) FROM step
        WHERE admission_limit <> 'none' GROUP BY limit_request""",
    )
    assert found == {request: (steps, step) for request, steps, step in expected}


def test_a_tool_gap_lasts_from_a_turns_end_to_the_next_one(trace: Path) -> None:
    exported = Exported(trace)
    columns = exported.requests
    ends = dict(rows(trace, "SELECT session || '/' || turn, finished_ns FROM request"))
    for job, turn, gap in zip(columns["session"], columns["turn"], columns["gap_start_ns"], strict=True):
        assert (gap is None) == (turn == 1)
        assert gap is None or gap + exported.origin == ends[f"{job}/{turn - 1}"]


def test_no_machine_path_of_the_model_is_passed_on(tmp_path: Path) -> None:
    path = create_trace(tmp_path / "trace.duckdb")
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE engine SET model = '/home/someone/models/tiny-llama/'")
    assert Exported(path).engine["facts"]["model"] == "tiny-llama"


def test_totals_are_those_of_the_trace(trace: Path) -> None:
    totals = Exported(trace).engine["totals"]
    assert totals["requests"] == 40
    assert (totals["output_tokens"],) == rows(trace, "SELECT sum(output_tokens)::INT FROM request")[0]
    assert (totals["preemptions"],) == rows(trace, "SELECT sum(preemptions)::INT FROM request")[0]
    assert (totals["recomputed_tokens"],) == rows(trace, "SELECT sum(resumed_tokens)::INT FROM step")[0]
    hits = rows(trace, "SELECT sum(local_cached_tokens)::INT, sum(prompt_tokens)::INT FROM request")[0]
    assert (totals["prefix_hit_tokens"], totals["prefix_queried_tokens"]) == hits
    external = rows(trace, "SELECT sum(external_cached_tokens)::INT FROM request")[0]
    assert (totals["external_hit_tokens"],) == external
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
    texts = "\n".join(note["text"] for note in Exported(path).run["notes"])
    for expected in ("m:C.f: not found", "no evictions", "1,234 records", "disk is full", "exit code 3", "2 rows"):
        assert expected in texts
    assert "m:C.g" not in texts


def test_what_a_page_has_no_room_for_is_noted(trace: Path) -> None:
    whole = Exported(trace)
    (last,) = whole.engine["blocks"]["levels"][-1]
    needed = sum(len(chunk) + MemorySink.AROUND for chunk in whole.chunks.values())
    exported = Exported(trace, room=needed - len(whole.chunks[last["id"]]) // 2)
    assert exported.engine["blocks"]["levels"] == [[]]
    assert f"No room in this page for {last['rows']:,} changes of KV blocks" in exported.run["notes"][-1]["text"]


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
    exported = Exported(path)
    assert exported.steps["end_ns"][-1] is None
    assert None in exported.requests["finished_ns"]
    assert (exported.run["origin"], exported.run["first_ns"]) == ("first event", 0)
    ends = map(sum, zip(exported.segments["start_ns"], exported.segments["duration_ns"], strict=True))
    assert max(ends) == exported.run["last_ns"] == max(exported.requests["end_ns"])


def test_each_engine_has_its_own_part(tmp_path: Path) -> None:
    path = create_trace(tmp_path / "trace.duckdb", engines=2)
    engines = [Exported(path, engine) for engine in (0, 1)]
    assert [exported.engine["facts"]["engine_id"] for exported in engines] == [1, 2]
    assert [min(exported.requests["request"]) for exported in engines] == [1, 41]


def test_a_trace_of_nothing_has_no_engines(tmp_path: Path) -> None:
    run = Exported(create_trace(tmp_path / "trace.duckdb", engines=0)).run
    assert (run["engines"], run["first_ns"]) == ([], None)


def test_a_trace_of_another_version_is_refused(tmp_path: Path) -> None:
    path = create_trace(tmp_path / "trace.duckdb", engines=0)
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE run SET value = '99' WHERE key = 'trace_version'")
    with pytest.raises(KvtraceError, match=r"99.*1"):
        Exported(path)
