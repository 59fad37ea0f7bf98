"""Replays of real engines: with recorded times they repeat the recording, block for block."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

import kvtrace as package
from kvtrace.errors import KvtraceError
from kvtrace.lab.replay import advise, timing
from kvtrace.lab.replay.check import outcome
from kvtrace.lab.replay.loops import Loop
from kvtrace.lab.replay.recording import read_recording
from kvtrace.lab.replay.run import Job, Replayed, replay
from kvtrace.lab.replay.session import Session
from kvtrace.lab.replay.settings import recorded_settings
from tests.lab.replay.conftest import kvtrace, shipped


def replayed(trace: Path, *options: str | Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(kvtrace("replay", trace, "--json", *options).stdout)
    return answer


def test_an_engine_with_lmcache_is_repeated_and_predicted_with_a_model_of_its_tier(lmcache_h200: Path) -> None:
    """All its prefills are stored, and still tell what they take."""
    answer = replayed(lmcache_h200, "--recorded", "tier=lmcache", "--recorded", "tier_bytes=16GiB")
    outcomes = answer["outcomes"]
    assert answer["agreement"]["identical_steps"] == 1.0
    assert outcomes["repeated"]["hit_tokens"] == outcomes["recorded"]["hit_tokens"] > 0
    job, predicted = (outcomes[name]["latency_ms"]["job"][0] for name in ("recorded", "fitted"))
    assert predicted == pytest.approx(job, rel=0.06)
    assert outcomes["fitted"]["hit_share"] == pytest.approx(outcomes["recorded"]["hit_share"], abs=0.01)
    assert not answer["time_model"]["copies_taken_off"]


def test_the_demo_is_repeated_block_for_block(demo: Path, tmp_path: Path) -> None:
    out = tmp_path / "again.duckdb"
    answer = replayed(demo, "-o", out)
    agreement, outcomes = answer["agreement"], answer["outcomes"]
    assert agreement == {"identical_steps": 1.0, "identical_blocks": 1.0, "departs": None}
    counted = ("steps", "hit_tokens", "evictions", "preemptions", "output_tokens")
    assert [outcomes["repeated"][key] for key in counted] == [outcomes["recorded"][key] for key in counted]
    assert outcomes["recorded"]["evictions"] > 0
    assert outcomes["recorded"]["preemptions"] > 0
    with package.open(out) as trace:
        facts = dict(trace.sql("SELECT key, value FROM run").itertuples(index=False))
        assert facts["source"] == "replay"
        assert facts["replayed"] == "trace.duckdb"
        lost = trace.sql("SELECT * FROM hook WHERE state = 'disabled'")
        assert not len(lost)
        tags = trace.sql("SELECT count(DISTINCT session) s, max(turn) t, count(external_id) e FROM request")
        assert tags.iloc[0].tolist() == [8, 3, 32]


def test_a_recording_of_pins_says_what_the_jobs_order_would_give(warm_replays: None, tmp_path: Path) -> None:
    """Two engines of the policy study with the same requests; the second one serves turns in their jobs' order."""
    trace = shipped("pins-h200", tmp_path)
    answer = replayed(trace, "--set", "order=jobs", "--draws", "8")
    assert answer["agreement"] == {"identical_steps": 1.0, "identical_blocks": 1.0, "departs": None}
    before, predicted = (answer["outcomes"][name] for name in ("recorded", "what if"))
    measured = outcome(shipped("pins-order-h200", tmp_path))
    assert predicted["latency_ms"]["job"][0] == pytest.approx(measured.latency_ms["job"][0], rel=0.07)
    assert measured.latency_ms["job"][0] < 0.6 * before["latency_ms"]["job"][0]
    fewest, most = answer["over_draws"]["what if"]["evictions"]["interval"]
    assert fewest < measured.evictions < most < before["evictions"]
    assert measured.evictions < 0.5 * before["evictions"]
    said = kvtrace("replay", trace, "--check").stdout
    assert re.search(r"launching a step with prefill takes the host 3\d\.\d ms, 1\d\.\d ms with CUDA graphs", said)
    asked = {question.name: question.changes for question in advise.questions(Session(trace, tmp_path))}
    assert asked["job order"] == ("order=jobs",)
    assert asked["no pins"] == ("policy=fcfs",)
    assert asked["graphs to 512"] == ("max_cudagraph_capture_size=512",)


def test_a_larger_pool_keeps_what_the_recorded_one_evicted(demo: Path, tmp_path: Path) -> None:
    out = tmp_path / "larger.duckdb"
    answer = replayed(demo, "--set", "num_gpu_blocks=4x", "-o", out)
    recorded, fitted, larger = (answer["outcomes"][name] for name in ("recorded", "fitted", "what if"))
    assert abs(fitted["hit_share"] - recorded["hit_share"]) < 0.05
    assert larger["evictions"] == larger["preemptions"] == 0
    assert larger["hit_tokens"] > recorded["hit_tokens"]
    with package.open(out) as trace:
        assert trace.sql("SELECT blocks FROM engine").iloc[0, 0] == 4 * 48 - 1
        facts = dict(trace.sql("SELECT key, value FROM run").itertuples(index=False))
        assert json.loads(facts["replay_changes"]) == {"num_gpu_blocks": 192}
        assert facts["replay_time"] == "fitted"
    again = replayed(demo, "--set", "num_gpu_blocks=4x")
    assert again["outcomes"] == answer["outcomes"]  # the same every time


def test_blocks_kept_free_at_admission_spare_preemptions(demo: Path) -> None:
    answer = replayed(demo, "--set", "watermark=0.3")
    fitted, spared = (answer["outcomes"][name] for name in ("fitted", "what if"))
    assert spared["preemptions"] < fitted["preemptions"]
    assert spared["steps"] != fitted["steps"]
    advice = json.loads(kvtrace("advise", demo, "--json").stdout)
    assert "watermark 1%" in json.dumps(advice)


@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_a_reset_comes_between_the_same_requests_however_long_steps_take(
    demo: Path, tmp_path: Path, factor: float
) -> None:
    """A reset at its recorded time would be lost where requests take longer: vLLM refuses one while they run."""
    recording = read_recording(demo)
    reset_ns = max(request.finished_ns or 0 for request in recording.requests if request.turn in (0, 1)) + 1
    assert reset_ns < min(request.arrival_ns for request in recording.requests if request.turn == 2)
    reset = replace(recording, resets_ns=[reset_ns])
    model = timing.fit(recording.steps)
    decode, mixed = ([factor * each for each in part] for part in (model.decode, model.mixed))
    model = replace(model, decode=decode, mixed=mixed, overhead_ns=round(factor * model.overhead_ns))
    settings = recorded_settings(recording.engine)
    # In an open loop the next requests are there before the others have ended, if these take longer.
    kinds = ["closed", "batch", *(("open",) if factor < 1 else ())]
    jobs = [Job(kind, settings, model, Loop(kind, 1.0), tmp_path / f"{kind}.duckdb") for kind in kinds]
    for done in replay(reset, jobs, at_once=2):
        assert isinstance(done, Replayed), done
    for job in jobs:
        with package.open(job.target) as trace:
            resets = trace.sql("SELECT time_ns FROM block_event WHERE op = 'reset' ORDER BY time_ns")
            ends = trace.sql("SELECT turn, queued_ns, finished_ns FROM request")
        assert len(resets) == 1, job.name
        [at] = resets["time_ns"]
        assert (ends[ends.turn < 2].finished_ns < at).all()
        assert (ends[ends.turn >= 2].queued_ns > at).all()


def test_priorities_samples_stops_aborts_and_tenants_are_repeated(served_mix: Path, tmp_path: Path) -> None:
    out = tmp_path / "again.duckdb"
    answer = replayed(served_mix, "-o", out)
    assert answer["agreement"] == {"identical_steps": 1.0, "identical_blocks": 1.0, "departs": None}
    with package.open(served_mix) as trace:
        ends = dict(
            trace.sql("SELECT finish_reason::VARCHAR, count(*) FROM request GROUP BY 1").itertuples(index=False)
        )
        evictors = evictors_by_tenant(trace)
    assert {"abort", "length", "stop"} <= set(ends)
    with package.open(out) as trace:
        assert evictors_by_tenant(trace) == evictors
    assert len({evictor for evictor, *_ in evictors} - {None}) == 3


def evictors_by_tenant(trace: Any) -> set[tuple[Any, ...]]:
    rows = trace.query("evictor-victim", by="tenant", format="arrow").to_pylist()
    return {(row["evictor"], row["victim"], row["evicted_blocks"]) for row in rows if row["evicted_blocks"]}


def test_advice_is_ranked_and_says_what_to_expect(demo: Path) -> None:
    advice = json.loads(kvtrace("advise", demo, "--json").stdout)
    gains = [answer["request_gain"] for answer in advice["answers"]]
    assert gains == sorted(gains, reverse=True)
    by_name = {answer["name"]: answer for answer in advice["answers"]}
    assert by_name["KV memory 4x"]["hit_share_gain"] > 0.2
    assert by_name["no prefix cache"]["hit_share"] == 0
    assert by_name["KV memory 2x"]["option"] == "--num-gpu-blocks-override 96"
    assert by_name["KV memory 2x"]["memory_bytes"] == 48 * 65536
    assert "request_mean" in advice["expected_errors"]
    offload = by_name["offload 16 GiB"]
    assert offload["host_bytes"] == 16 << 30
    assert offload["hit_share_gain"] > 0.2
    assert offload["option"] == "--kv-offloading-size 16 --kv-offloading-backend native"
    small = by_name["offload 1x"]
    assert small["host_bytes"] == 48 * 65536
    assert small["option"] == "--kv-offloading-size 0.00293 --kv-offloading-backend native"
    assert 0 < small["hit_share_gain"] < offload["hit_share_gain"] <= by_name["offload 4x"]["hit_share_gain"] + 0.05
    assert any("no transfers" in warning for warning in advice["warnings"])


def paced(demo: Path, folder: Path, paces: list[float]) -> Session:
    """A session whose engine is that even."""
    session = Session(demo, folder)
    session.model = session.own_model = replace(session.own_model, paces=paces)
    return session


def test_a_gain_is_recommended_where_two_runs_do_not_differ_by_as_much(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    larger = advise.Question("KV memory 4x", ("num_gpu_blocks=4x",), "--larger")
    monkeypatch.setattr(advise, "questions", lambda _: [larger])
    monkeypatch.setattr(advise, "expected_error", lambda *_: 0.0)  # which depends on how even the machine's steps were
    # GIVEN an engine with fast and slow spells, and one whose steps take what is predicted
    uneven = paced(demo, tmp_path, [0.2] * 400 + [5.0] * 400)
    even = paced(demo, tmp_path, [1.0] * 8)
    # THEN the same prediction is recommended for the second one only
    doubtful, sure = (advise.advise(session, 2, draws=8) for session in (uneven, even))
    assert [one.answers[0].gains for one in (doubtful, sure)] == [sure.answers[0].gains] * 2
    assert sure.options == [("KV memory 4x", "--larger")]
    assert doubtful.options == []
    assert "KV memory 4x" in next(note for note in doubtful.notes if note.startswith("Not recommended"))
    assert sure.answers[0].drawn is not None
    assert sure.answers[0].drawn["request"].half_width == pytest.approx(0, abs=1e-9)
    # and draws are the same every time, however many run side by side
    assert advise.advise(uneven, 1, draws=8).to_json() == doubtful.to_json()
    # GIVEN one draw THEN it is the prediction without any
    assert "draw" not in json.dumps(advise.advise(even, 2, draws=1).to_json())
    with pytest.raises(KvtraceError, match="3 draws: an interval needs at least 8"):
        advise.advise(even, 2, draws=3)


def test_a_report_has_the_advice_where_it_is_asked_for(demo: Path, tmp_path: Path) -> None:
    kvtrace("report", demo, "--advise", "--draws", "8", "-o", tmp_path / "report")
    page = (tmp_path / "report" / "report.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `KV memory ")]
    predicted, drawn = ([row for row in rows if ("±" in row) == over_draws] for over_draws in (False, True))
    assert len(predicted) == 4, page[-3000:]
    assert bool(drawn) == ("8 draws of step times: predicted change" in page) == ("was replayed 8 times" in page)
    # which of them is worth it depends on how even the machine's steps were
    assert "All figures are predicted" in page
    assert ("Nothing here would have helped" in page) != ("| in vLLM |" in page)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["max_num_batched_tokens=3"], "vLLM would not start with these settings: max_num_batched_tokens (3)"),
        (["max_num_seqs=1000"], "vLLM would not start with these settings: max_num_batched_tokens"),
        (["num_gpu_blocks=4"], "requests could never be scheduled with these settings"),
    ],
)
def test_what_no_engine_could_run_has_no_figures(demo: Path, changes: list[str], message: str) -> None:
    options = [option for change in changes for option in ("--set", change)]
    done = kvtrace("replay", demo, *options, code=1)
    assert message in done.stderr
    assert "what if" not in done.stdout


def test_a_replay_tells_what_became_of_its_prefetches(demo: Path) -> None:
    """The demo's sessions have no tools: each of their turns may be followed by another."""
    options = ["--set", "tier=host", "--set", "prefetch=oracle"]
    [(name, counts)] = replayed(demo, *options)["prefetches"].items()
    with duckdb.connect(str(demo), read_only=True) as connection:
        [(turns,)] = connection.execute("SELECT count(*) - count(DISTINCT session) FROM request").fetchall()
    assert name == "what if"
    assert counts["planned"] == turns
    assert counts["begun"] + counts["late"] + counts["refused"] <= counts["planned"]
    done = kvtrace("replay", demo, *options)
    assert f"what if: {turns} prefetches planned, {counts['begun']} begun (of {counts['blocks']} blocks)" in done.stdout


def test_prefetching_is_refused_where_no_request_has_a_session(demo: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.duckdb"
    shutil.copy(demo, trace)
    with duckdb.connect(str(trace)) as connection:
        connection.execute("UPDATE request SET session = NULL")
    done = kvtrace("replay", trace, "--set", "tier=host", "--set", "prefetch=average", code=1)
    assert "no request of this recording has a session tag" in done.stderr
    assert "what if" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("advise", "--draws", "3"), "3 draws: an interval needs at least 8"),
        (("report", "--draws", "8"), "--draws is for --advise"),
        (("report", "--advise", "--draws", "7"), "7 draws: an interval needs at least 8"),
    ],
)
def test_draws_that_tell_nothing_are_refused(
    demo: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    command, *options = arguments
    output = ("-o", tmp_path / "report") if command == "report" else ()
    assert kvtrace(command, demo, *options, *output, code=1).stderr == message
