"""Reads of traces: what a replay cannot repeat, and what earlier kvtraces did not record."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from kvtrace.errors import KvtraceError
from kvtrace.lab.policies import TTL_PIN
from kvtrace.lab.replay.drive import Drive, _pin_on_time
from kvtrace.lab.replay.recording import HIDDEN_COPY_NS, EngineFacts, Pinned, read_recording
from kvtrace.lab.replay.settings import (
    ASSUMED,
    Settings,
    changed_settings,
    recorded_settings,
    untold_settings,
    with_copies_of,
)
from kvtrace.lab.replay.workload import engine_like
from tests.traces import write_trace

ENGINE = {
    "engine_id": 1, "block_size_tokens": 16, "blocks": 63, "max_num_batched_tokens": 256, "max_num_seqs": 8,
    "max_model_len": 512, "prefix_caching": True, "scheduler": "vllm.v1.core.sched.scheduler.Scheduler",
}  # fmt: skip


def trace(path: Path, *more: str, **engine: Any) -> Path:
    """One request in one step of an engine."""
    facts = {**ENGINE, **engine}
    values = ", ".join(f"'{value}'" if isinstance(value, str) else str(value) for value in facts.values())
    return write_trace(
        path / "trace.duckdb",
        f"INSERT INTO engine ({', '.join(facts)}) VALUES ({values})",
        "INSERT INTO request (request, engine_id, internal_id, prompt_tokens, max_tokens, output_tokens, arrival_ns, "
        "queued_ns) VALUES (1, 1, 'a', 40, 8, 8, 5, 6)",
        "INSERT INTO request_queued (request, engine_id, time_ns, tool) VALUES (1, 1, 6, 'grep')",
        "INSERT INTO step_schedule (engine_id, step, start_ns, decode_requests, decode_tokens) VALUES (1, 1, 10, 0, 0)",
        *more,
    )


REFUSED = {
    "speculative": (("UPDATE step_schedule SET decode_requests = 1, decode_tokens = 3",), {}, "not tell its drafts"),
    "pair": (("INSERT INTO request_remote (request, engine_id) VALUES (1, 1)",), {}, "half of a prefill/decode pair"),
    "streaming": (("INSERT INTO pin_start (engine_id, cause) VALUES (1, 'streaming')",), {}, "streaming sessions"),
    "images": (("INSERT INTO request_key (request, engine_id, multimodal_key) VALUES (1, 1, 7)",), {}, "had images"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_replay_can_repeat_says_why(name: str, tmp_path: Path) -> None:
    more, engine, why = REFUSED[name]
    with pytest.raises(KvtraceError, match=re.escape(why)) as refused:
        read_recording(trace(tmp_path, *more, **engine))
    assert refused.value.exit_code == 2


def test_a_connectors_size_is_read_or_asked_for(tmp_path: Path) -> None:
    (tmp_path / "told").mkdir()
    transfer = {"kv_transfer": {"kv_connector_extra_config": {"cpu_bytes_to_use": 4096}}}
    told = read_recording(trace(tmp_path / "told", connector="OffloadingConnector", settings=json.dumps(transfer)))
    assert recorded_settings(told.engine).cpu_bytes_to_use == 4096
    untold = read_recording(trace(tmp_path, connector="OffloadingConnector")).engine
    with pytest.raises(KvtraceError, match="--recorded cpu_bytes_to_use") as refused:
        untold_settings(untold, recorded_settings(untold))
    assert refused.value.exit_code == 2


def test_copies_are_as_fast_as_recorded_ones(tmp_path: Path) -> None:
    """Of the recording itself or of the one that gives step times; a tier that is no host memory has its own speed."""
    (tmp_path / "moved").mkdir()
    rates = (
        "INSERT INTO transfer_rate VALUES (1, 'load', 'device', 9, 9, 9, 4e10), (1, 'store', 'device', 9, 9, 9, 3e10)"
    )
    moved = read_recording(trace(tmp_path / "moved", rates)).engine
    assert (moved.load_gb_per_s, moved.store_gb_per_s) == (40, 30)
    base = recorded_settings(moved)
    assert (base.load_gb_per_s, base.store_gb_per_s) == (40, 30)
    host, disk = (
        changed_settings(replace(moved, block_bytes=1), base, [f"tier={name}"]).tier for name in ("host", "disk")
    )
    assert (host["load_gb_per_s"], host["store_gb_per_s"], disk["load_gb_per_s"]) == (40, 30, 5)
    still = read_recording(trace(tmp_path)).engine
    assumed = recorded_settings(still)
    assert (assumed.load_gb_per_s, assumed.store_gb_per_s) == ASSUMED["offloading"][:2]
    taken = recorded_settings(with_copies_of(still, moved))
    assert taken == replace(assumed, load_gb_per_s=40, store_gb_per_s=30)
    assert with_copies_of(moved, still) == moved


def test_what_one_connectors_copies_take_is_not_anothers(tmp_path: Path) -> None:
    """Recorded ones are those of their connector; another's are as assumed of it, but for what is given."""
    (tmp_path / "moved").mkdir()
    rate = "INSERT INTO transfer_rate VALUES (1, 'load', 'device', 9, 9, 9, 2e10)"
    moved = read_recording(trace(tmp_path / "moved", rate, connector="SimpleCPUOffloadConnector")).engine
    plain = read_recording(trace(tmp_path)).engine
    own, none = recorded_settings(moved), recorded_settings(plain)
    simple, offloading = ASSUMED["simple-cpu-offload"], ASSUMED["offloading"]
    assert (own.load_gb_per_s, own.store_gb_per_s) == (20, simple.store_gb_per_s)

    def rates(engine: EngineFacts, base: Settings, *changes: str) -> tuple[float, ...]:
        found = changed_settings(engine, base, ["cpu_bytes_to_use=1GiB", *changes])
        return tuple(getattr(found, name) for name in ASSUMED["offloading"]._fields)

    assert rates(plain, none, "connector=simple-cpu-offload") == simple
    assert rates(plain, none, "connector=simple-cpu-offload", "load_gb_per_s=9") == simple._replace(load_gb_per_s=9)
    assert rates(moved, own, "connector=offloading") == offloading
    taken = with_copies_of(plain, moved)
    assert rates(taken, recorded_settings(taken), "connector=simple-cpu-offload")[0] == 20


@pytest.mark.parametrize("direction", ["load", "store"])
def test_lmcache_is_as_fast_as_it_was_recorded_to_be(tmp_path: Path, direction: str) -> None:
    """Also for an engine of the lab with no connector of its own; a direction that did not copy is as assumed."""
    (tmp_path / "moved").mkdir()
    rate = f"INSERT INTO transfer_rate VALUES (1, '{direction}', 'host', 9, 9, 9, 2e10)"
    moved = read_recording(trace(tmp_path / "moved", rate, connector="LMCacheConnectorV1")).engine
    plain = replace(read_recording(trace(tmp_path)).engine, block_bytes=1)
    assumed, offloads = {"load": 60.0, "store": 25.0}, replace(moved, copies_by="OffloadingConnector")
    for engine, expected in (
        (engine_like(replace(moved, block_bytes=1)), {**assumed, direction: 20.0}),
        (with_copies_of(plain, moved), {**assumed, direction: 20.0}),
        (with_copies_of(plain, offloads), assumed),
        (plain, assumed),
    ):
        tier = changed_settings(engine, recorded_settings(engine), ["tier=lmcache"]).tier
        assert {each: tier[f"{each}_gb_per_s"] for each in assumed} == expected


@pytest.mark.parametrize("waits", [True, False])
def test_what_lmcaches_worker_waits_for_is_no_copy(tmp_path: Path, waits: bool) -> None:
    """It loaded from 12 to 15, saved from 30 to 90 and stored from 80 on, which earlier kvtraces did not tell."""
    started = 80 if waits else 30
    more = (
        "INSERT INTO connector_call (process_id, engine_id, step, part, call, start_ns, end_ns) VALUES "
        "(7, 1, 1, 0, 'load', 12, 15), (7, 1, 1, 0, 'save', 30, 90), (7, 1, 1, 0, 'poll', 90, 95)",
        "INSERT INTO transfer_submit (process_id, engine_id, step, transfer, direction, submitted_ns) VALUES "
        "(7, 1, 1, 1, 'load', 12), (7, 1, 1, 2, 'store', 30)",
        "INSERT INTO transfer_end (process_id, transfer, started_ns, finished_ns) VALUES "
        f"(7, 1, 12, 15), (7, 2, {started}, 90)",
        "INSERT INTO transfer_rate VALUES (1, 'store', 'host', 9, 9, 9, 2e10)",
    )
    found = read_recording(trace(tmp_path, *more, connector="LMCacheConnectorV1"))
    (step,) = found.steps
    assert (step.copying_ns, step.waited_ns, step.worked_ns) == ((13, 50, 67) if waits else (63, 0, 0))
    assert found.engine.store_gb_per_s == (20.0 if waits else None)
    assert any("by an earlier kvtrace" in warning for warning in found.warnings) is not waits


def test_drafts_are_by_the_tokens_before_them(tmp_path: Path) -> None:
    """The rest of a draft stands where another replay may stop within it."""
    rows = [("prefill", 0, 40, None), ("decode", 40, 4, (3, 2)), ("decode", 43, 1, None), ("decode", 44, 3, (2, 0))]
    shares = (
        f"INSERT INTO step_request (engine_id, step, request, phase, computed_tokens, scheduled_tokens) "
        f"VALUES (1, {step}, 1, '{phase}', {computed}, {tokens})"
        for step, (phase, computed, tokens, _) in enumerate(rows, 1)
    )
    drafts = (
        f"INSERT INTO draft (engine_id, step, request, drafted_tokens, accepted_tokens) VALUES (1, {step}, 1, {d}, {a})"
        for step, (*_, (d, a)) in ((step, row) for step, row in enumerate(rows, 1) if row[3])
    )
    told = {"settings": json.dumps({"speculative": {"method": "ngram", "num_speculative_tokens": 3}})}
    recording = read_recording(trace(tmp_path, *shares, *drafts, **told))
    assert recording.requests[0].drafts == {0: (0, 0), 1: (3, 2), 2: (2, 1), 3: (1, 0), 4: (0, 0), 5: (2, 0)}
    base = recorded_settings(recording.engine)
    assert base.num_speculative_tokens == 3
    assert changed_settings(recording.engine, base, ["num_speculative_tokens=0"]).num_speculative_tokens == 0
    with pytest.raises(KvtraceError, match="3 were recorded"):
        changed_settings(recording.engine, base, ["num_speculative_tokens=4"])


def test_pins_and_tools_are_read(tmp_path: Path) -> None:
    settings = json.dumps({"ttl_pin": {"ttl_s": 1.5}})
    recording = read_recording(trace(tmp_path, scheduler=TTL_PIN, settings=settings))
    assert recorded_settings(recording.engine).pins == {"ttl_s": 1.5}
    assert recording.requests[0].tool == "grep"


def test_a_pins_time_to_live_ends_between_two_steps(tmp_path: Path) -> None:
    """Steps start at 20, 30 and 40 s. The second pin is used, the third held to the end."""
    rows = [
        f"INSERT INTO step_schedule (engine_id, step, start_ns, scheduled_ns) VALUES (1, {step}, {step}0000000000, 0)"
        for step in (2, 3, 4)
    ]
    for number, end in enumerate(("40000000099, 4, 'expired'", "35000000000, 3, 'used'", None), 1):
        rows += [
            f"INSERT INTO request (request, engine_id, internal_id) VALUES ({10 + number}, 1, 'p{number}')",
            "INSERT INTO pin_start (engine_id, time_ns, step, pin, block_id, cause, request) "
            f"VALUES (1, {number}, 2, {number}, 1, 'ttl', {10 + number}), (1, 9, 2, {number}, 2, 'ttl', {10 + number})",
        ]
        if end:
            rows.append(
                f"INSERT INTO pin_end (engine_id, pin, block_id, time_ns, step, reason) VALUES (1, {number}, 1, {end})"
            )
    assert read_recording(trace(tmp_path, *rows)).pins == {
        "p1": (1, 30_000_000_000, 40_000_000_000),
        "p2": (2, 35_000_000_000, None),
        "p3": (3, None, None),
    }


class Held(NamedTuple):
    """A scheduler's pin."""

    end: float


@pytest.mark.parametrize("late_ns", [-5_000, 0, 5_000])
def test_a_pin_ends_in_the_step_in_which_it_did(late_ns: int) -> None:
    """Whatever microseconds lie between its beginning and when that was recorded."""
    start_ns, begin_ns = 1_795_817_666_315_949_619, 1_795_817_663_315_949_619 + late_ns
    moments: list[int] = []
    pinned: dict[str, Held] = {}

    def pin_request(request: Any, seconds: float) -> None:
        pinned[request.request_id] = Held(moments[-1] / 1e9 + seconds)

    scheduler = SimpleNamespace(pin_request=pin_request, pinned_requests=pinned)
    recording = SimpleNamespace(pins={"r": Pinned(begin_ns, start_ns - 7_000_000, start_ns)})
    drive = SimpleNamespace(scheduler=scheduler, recording=recording, clock=SimpleNamespace(set=moments.append))
    _pin_on_time(cast("Drive", drive))
    scheduler.pin_request(SimpleNamespace(request_id="r"), 3.0)
    assert (start_ns - 7_000_000) / 1e9 < pinned["r"].end <= start_ns / 1e9


def test_traces_of_earlier_kvtraces_are_read(tmp_path: Path) -> None:
    recording = read_recording(
        trace(tmp_path, "ALTER TABLE engine DROP settings", "ALTER TABLE request_queued DROP tool", scheduler=TTL_PIN)
    )
    assert recording.requests[0].tool is None
    [warning] = untold_settings(recording.engine, recorded_settings(recording.engine))
    assert "options of TTL pins are not in the trace" in warning


def test_a_redacted_trace_tells_no_further_settings(tmp_path: Path) -> None:
    assert read_recording(trace(tmp_path, settings="ghjk-12")).engine.told == {}


def test_samples_arrive_at_once_and_others_when_they_came(tmp_path: Path) -> None:
    later = {"0_b": 10_000_000, "1_b": 12_000_000, "0_far": 20_000_000, "1_far": 9_000_000_000, "c": 12_000_001}
    rows = ", ".join(
        f"({number}, 1, '{name}', 40, 8, 8, {at}, {at})" for number, (name, at) in enumerate(later.items(), 2)
    )
    more = (
        "INSERT INTO request (request, engine_id, internal_id, prompt_tokens, max_tokens, output_tokens, arrival_ns, "
        f"queued_ns) VALUES {rows}"
    )
    found = {request.internal_id: request.arrival_ns for request in read_recording(trace(tmp_path, more)).requests}
    assert found == {"a": 5, **later, "1_b": later["0_b"]}


def test_a_cached_block_is_its_requests_or_else_its_holders(tmp_path: Path) -> None:
    """Block 7 goes from request 1 to request 2 within step 3; what is cached with a step's results names no request."""
    recording = read_recording(
        trace(
            tmp_path,
            "INSERT INTO request (request, engine_id, internal_id, prompt_tokens, max_tokens, output_tokens, "
            "arrival_ns, queued_ns) VALUES (2, 1, 'b', 40, 8, 8, 7, 8)",
            "INSERT INTO block_table (engine_id, step, request, position, block_id) "
            "VALUES (1, 1, 1, 0, 7), (1, 3, 2, 1, 7), (1, 3, 2, 0, 8)",
            "INSERT INTO block_event (engine_id, step, block_id, op, pool, request, block_hash, time_ns) "
            "VALUES (1, 3, 7, 'cache', 0, 1, 111, 30), (1, 4, 7, 'cache', 0, NULL, 222, 40)",
            hash_block_tokens=16,
        )
    )
    chains = {request.number: request.chain for request in recording.requests}
    assert chains == {1: {0: 111}, 2: {1: 222}}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("connector", ["OffloadingConnector", "SimpleCPUOffloadConnector"])
def test_what_questions_and_loads_cost_the_host_is_told_by_the_block(
    tmp_path: Path, connector: str, workers: int
) -> None:
    """A step is planned in 0.1 ms, and 10 us more a block asked about. One has stalled.

    Loads take 5 us a block more in the scheduler, and 30 in the worker's call, and copy at 50 us a block. One connector
    has a thread for its copies, which hold up launches. Each of a tensor-parallel engine's workers loads all blocks.
    """
    asked, loaded = [10, 200, 0, 40, 0, 300, 25, 0, 0, 150, 7], [0, 60, 0, 0, 0, 250, 0, 0, 0, 0, 0]
    rows = []
    for number, (blocks, load) in enumerate(zip(asked, loaded, strict=True), 2):
        start, request = number * 10**9, 100 + number
        planned = start + 100_000 + 10_000 * blocks + 5_000 * load + (10**8 if blocks == 7 else 0)
        rows += [
            "INSERT INTO step_schedule (engine_id, step, start_ns, scheduled_ns, decode_requests, decode_tokens) "
            f"VALUES (1, {number}, {start}, {planned}, 0, 0)",
        ]
        if blocks:
            rows += [
                f"INSERT INTO request (request, engine_id, prompt_tokens) VALUES ({request}, 1, {16 * blocks})",
                "INSERT INTO connector_lookup (engine_id, step, request, part) VALUES "
                f"(1, {number}, {request}, 0), (1, {number}, {request}, 1)",  # a MultiConnector asks its parts
            ]
        for worker in range(1, 1 + workers if load else 1):
            rows += [
                "INSERT INTO transfer_submit (process_id, engine_id, step, transfer, connector, direction, blocks) "
                f"VALUES ({worker}, 1, {number}, {number}, '{connector}', 'load', {load})",
                "INSERT INTO transfer_end (process_id, transfer, finished_ns, device_ns) "
                f"VALUES ({worker}, {number}, {planned}, {50_000 * load})",
                "INSERT INTO connector_call (process_id, engine_id, step, part, call, start_ns, end_ns) "
                f"VALUES ({worker}, 1, {number}, 0, 'load', {planned}, {planned + 30_000 * load})",
            ]
    recording = read_recording(trace(tmp_path, *rows, connector=connector))

    assert recording.engine.connector_lookup_us == pytest.approx(10)
    assert recording.engine.copy_begin_us == pytest.approx(35)
    assert {step.step: step.copying_ns for step in recording.steps if step.copying_ns} == {
        number: 30_000 * load + max(50_000 * load - HIDDEN_COPY_NS, 0) * (connector == "SimpleCPUOffloadConnector")
        for number, load in enumerate(loaded, 2)
        if load
    }
    assert {step.step: step.asking_ns for step in recording.steps if step.asking_ns} == {
        number: 10_000 * blocks for number, blocks in enumerate(asked, 2) if blocks
    }


@pytest.mark.parametrize(
    ("graphs", "eager", "expected"),
    [
        ([], [40, 7], 0),
        ([4, 16], [17, 40], 16),  # vLLM's default: twice max_num_seqs
        ([4], [], 16),
        ([4, 12], [13], 12),  # another one: 13 tokens would have had graphs
        ([4, 30], [40], 30),
    ],
)
def test_steps_tell_up_to_how_many_tokens_the_engine_had_cuda_graphs(
    graphs: list[int], eager: list[int], expected: int, tmp_path: Path
) -> None:
    modes = [(tokens, "piecewise") for tokens in graphs] + [(tokens, "eager") for tokens in eager]
    rows = [
        sql
        for step, (tokens, mode) in enumerate(modes, 2)
        for sql in (
            f"INSERT INTO step_schedule (engine_id, step, start_ns) VALUES (1, {step}, {10 * step})",
            "INSERT INTO step_request (request, engine_id, step, phase, scheduled_tokens, computed_tokens) "
            f"VALUES (1, 1, {step}, 'prefill', {tokens}, 0)",
            "INSERT INTO forward (process_id, engine_id, step, start_ns, end_ns, tokens, graph_mode) "
            f"VALUES (7, 1, {step}, {10 * step}, {10 * step + 4}, {tokens}, '{mode}')",
        )
    ]
    recording = read_recording(trace(tmp_path, *rows))
    assert recording.engine.graph_tokens == expected
    assert [(step.launched_ns, step.graph_mode) for step in recording.steps[1:]] == [(4, mode) for _, mode in modes]
