"""Joins of ingest: clocks, processes, and a request's life in one row."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from kvtrace.capture.recorder import Recorder
from kvtrace.events import (
    FORWARD,
    REQUEST_EVENT,
    REQUEST_QUEUED,
    STEP_SCHEDULE,
    STEP_UPDATE,
    FinishReason,
    GraphMode,
    RequestOp,
)
from kvtrace.format import layout
from kvtrace.ingest.run import ingest


def rewrite_journal(directory: Path, **changes: object) -> None:
    """Change facts of a process's first journal line, and drop the clocks in its segments' headers."""
    path = directory / layout.JOURNAL
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text(json.dumps(json.loads(first) | changes) + "\n" + "".join(others))
    for segment in directory.glob("*.seg"):
        segment.write_bytes(segment.read_bytes().replace(b'"realtime_ns"', b'"nothing_now"'))


def update(recorder: Recorder, at_ns: int) -> Path:
    recorder.stream(STEP_UPDATE)(at_ns, at_ns + 1, 1, 0, 0)
    return recorder.directory


class TestClocks:
    def test_processes_of_a_host_share_the_offset_of_the_first(self, run_dir: Path, query: Callable) -> None:
        # GIVEN two processes of one boot, between which the realtime clock was set forward by 5 ms
        first, second = update(Recorder(run_dir), 50), update(Recorder(run_dir), 60)
        rewrite_journal(first, realtime_ns=1_000_100, monotonic_ns=100)
        rewrite_journal(second, realtime_ns=6_000_200, monotonic_ns=200)
        select = query(ingest(run_dir).target)
        # THEN the order of their events holds, and the step shows as a residual
        assert select("SELECT update_ns FROM step_update ORDER BY ALL") == [(1_000_050,), (1_000_060,)]
        assert select("SELECT process_id, offset_ns, residual_ns FROM clock ORDER BY ALL") == [
            (1, 1_000_000, 0),
            (2, 1_000_000, 5_000_000),
        ]
        assert select("SELECT started_ns FROM process ORDER BY process_id") == [(1_000_100,), (1_000_200,)]

    def test_hosts_have_offsets_of_their_own(self, run_dir: Path, query: Callable) -> None:
        first, second = update(Recorder(run_dir), 50), update(Recorder(run_dir), 50)
        rewrite_journal(first, realtime_ns=1_000, monotonic_ns=10, boot_id="one")
        rewrite_journal(second, realtime_ns=2_000, monotonic_ns=20, boot_id="two")
        select = query(ingest(run_dir).target)
        assert select("SELECT engine_id, update_ns FROM step_update ORDER BY ALL") == [(1, 1_040), (2, 2_030)]

    def test_the_most_certain_reading_of_the_first_process_counts(self, run_dir: Path, query: Callable) -> None:
        recorder = Recorder(run_dir)
        directory = update(recorder, 50)
        rewrite_journal(directory, realtime_ns=1_000, monotonic_ns=10, uncertainty_ns=300)
        with (directory / layout.JOURNAL).open("a") as journal:
            journal.write('{"kind": "clock", "realtime_ns": 2100, "monotonic_ns": 1000, "uncertainty_ns": 20}\n')
        select = query(ingest(run_dir).target)
        assert select("SELECT update_ns FROM step_update") == [(1_150,)]
        assert select("SELECT monotonic_ns, residual_ns FROM clock ORDER BY ALL") == [(10, -110), (1000, 0)]


def test_a_worker_finds_its_engine_by_pid_on_its_own_host(run_dir: Path, query: Callable) -> None:
    # GIVEN an engine with the same pid on two hosts, and a worker on the second
    engines = [Recorder(run_dir) for _ in range(2)]
    for engine in engines:
        engine.note("role", role="engine")
        engine.stream(STEP_SCHEDULE)(1, 2, 9, *[0] * (len(STEP_SCHEDULE.fields) - 3))
    rewrite_journal(engines[0].directory, host="a", boot_id="a", realtime_ns=100)
    rewrite_journal(engines[1].directory, host="b", boot_id="b", realtime_ns=200)
    worker = Recorder(run_dir)
    worker.note("role", role="worker")
    for step in (9, 10):
        worker.stream(FORWARD)(5, 6, os.getpid(), step, 1, 1, GraphMode.eager)
    rewrite_journal(worker.directory, host="b", boot_id="b", pid=7, realtime_ns=300)

    summary = ingest(run_dir)

    assert query(summary.target)("SELECT process_id, engine_id, step FROM forward") == [(3, 2, 9), (3, 2, 10)]
    assert ("forward -> step_schedule", 1, 1) in summary.joins


def test_a_request_is_one_row(run_dir: Path, query: Callable) -> None:
    recorder = Recorder(run_dir)
    event = recorder.stream(REQUEST_EVENT)
    served, waiting, aborted = (recorder.intern(name) for name in ("served", "waiting", "aborted"))
    for number in (served, waiting, aborted):
        recorder.stream(REQUEST_QUEUED)(10, number, 5, 40, 8, 0, recorder.intern("chat"), 2, 0)
    nothing = (0, -1, -1)
    event(20, 1, served, RequestOp.schedule, 0, 16, 0, 16, 8, 3)
    event(30, 1, served, RequestOp.first_token, 0, 40, 1, -1, -1, 3)
    event(40, 2, served, RequestOp.preempt, 0, 41, 2, -1, -1, 3)
    event(50, 3, served, RequestOp.resume, 0, 32, 2, 32, 0, 3)
    event(60, 9, served, RequestOp.finish, FinishReason.stop, 45, 5, -1, -1, 3)
    event(70, 9, aborted, RequestOp.finish, FinishReason.abort, 0, *nothing, 0)

    select = query(ingest(run_dir).target)

    ((offset_ns,),) = select("SELECT DISTINCT offset_ns FROM clock")
    columns = "internal_id, output_tokens, local_cached_tokens, external_cached_tokens, preemptions, finish_reason"
    assert select(f"SELECT {columns} FROM request ORDER BY request") == [
        ("served", 5, 16, 8, 1, "stop"),
        ("waiting", None, None, None, 0, None),
        ("aborted", None, None, None, 0, "abort"),
    ]
    times = "queued_ns, scheduled_ns, first_token_ns, finished_ns"
    assert select(f"SELECT {times} FROM request WHERE internal_id = 'served'") == [
        tuple(offset_ns + time for time in (10, 20, 30, 60))
    ]
    assert select("SELECT DISTINCT session, turn, prompt_tokens, arrival_ns FROM request") == [("chat", 2, 40, 5)]


def test_what_a_worker_says_of_its_gpu_has_tables(run_dir: Path, query: Callable) -> None:
    recorder = Recorder(run_dir)
    recorder.note("role", opens=True, role="worker")
    recorder.note("gpu_clock", offset_ns=-(1 << 60), uncertainty_ns=800, moved_ns=-3, event_uncertainty_ns=1500)
    recorder.note("gpu_clock", offset_ns=5, drift_ppb=18_800, uncertainty_ns=800, moved_ns=9, event_uncertainty_ns=1500)
    recorder.note("gpu_memory", free_bytes=100, total_bytes=1 << 37, allocated_bytes=20, reserved_bytes=30)
    recorder.note("gpu_memory", free_bytes="much", total_bytes=1 << 37)
    facts = {"name": "attn.0", "address": 1 << 46, "shape": [2, 3], "stride": [3, 1], "dtype": "bfloat16"}
    recorder.note("layer", index=0, timed="always", **facts)
    recorder.note("device", state="fallback", detail="windows by stamps")  # tells its layers anew
    recorder.note("layer", index=0, timed="always", **facts)
    recorder.note("layer", index=1, timed=None, in_kernel="write, attention", **facts)
    lines = [json.loads(line) for line in (recorder.directory / layout.JOURNAL).read_text().splitlines()]
    times = [line["monotonic_ns"] for line in lines if line["kind"].startswith("gpu_")]

    summary = ingest(run_dir)

    select = query(summary.target)
    ((offset_ns,),) = select("SELECT DISTINCT offset_ns FROM clock")
    assert select("FROM gpu_clock ORDER BY time_ns") == [
        (1, times[0] + offset_ns, -(1 << 60), None, 800, -3, 1500),  # of an earlier kvtrace
        (1, times[1] + offset_ns, 5, 18_800, 800, 9, 1500),
    ]
    assert select("FROM gpu_memory ORDER BY time_ns") == [
        (1, times[2] + offset_ns, 100, 1 << 37, 20, 30),
        (1, times[3] + offset_ns, None, 1 << 37, None, None),
    ]
    layer = ("attn.0", 1 << 46, "[2, 3]", "[3, 1]", "bfloat16")
    assert select("FROM kv_layer ORDER BY layer") == [
        (1, 0, *layer, "always", None),
        (1, 1, *layer, None, "write, attention"),
    ]
    assert any("free_bytes is 'much'" in warning for warning in summary.warnings)


def test_every_table_says_what_it_is(small_run: Path, query: Callable) -> None:
    select = query(ingest(small_run).target)
    assert select("SELECT table_name FROM duckdb_tables() WHERE comment IS NULL") == []
    assert select("SELECT table_name, column_name FROM duckdb_columns() WHERE comment IS NULL AND NOT internal") == []
    facts = dict(select("SELECT key, value FROM run"))
    assert (facts["command"], facts["exit_code"], facts["vllm_version"]) == ('["vllm"]', "0", "0.32.0")


def test_the_run_names_the_gpus_of_its_workers(run_dir: Path, query: Callable) -> None:
    told, older, frontend = Recorder(run_dir), Recorder(run_dir), Recorder(run_dir)
    for worker in (told, older):
        worker.note("role", opens=True, role="worker")
    told.note("rank", tp_rank=0, gpu="NVIDIA H200")
    older.note("device", state="recording", level="layer", name="NVIDIA H100 80GB HBM3")  # before ranks named it
    update(frontend, 50)
    select = query(ingest(run_dir).target)
    assert select("SELECT gpu FROM run_setting") == [("NVIDIA H100 80GB HBM3, NVIDIA H200",)]
