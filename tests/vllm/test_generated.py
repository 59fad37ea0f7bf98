"""Property: a replay with recorded times repeats whatever a real engine did with a generated workload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kvtrace as package
from tests.beside import python_path
from tests.vllm.conftest import ENGINE, HERE, kvtrace, vllm_environment
from tests.vllm.offload.engines import connector_engines
from tests.vllm.reproduction import check_all

SEED = 1
_TWO_GROUPS = {"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 64}
ENGINES = {
    "watermark": {"watermark": 0.1},
    "asynchronous": {"async_scheduling": True},
    "priorities": {
        "num_gpu_blocks_override": 18,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 96,
        "scheduling_policy": "priority",
    },
    "two groups": {"num_gpu_blocks_override": 48, "hf_overrides": _TWO_GROUPS},
    "speculation": {
        "num_gpu_blocks_override": 24,
        "speculative_config": {
            "method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2, "prompt_lookup_min": 1,
        },
    },
    "offloading": connector_engines(Path())["offloading"].engine,
}  # fmt: skip


@pytest.mark.usefixtures("warm_replays")
def test_generated_workloads_are_repeated(warm_python: list[str], tmp_path: Path) -> None:
    engines = [{**ENGINE, **options} for options in ENGINES.values()]
    script = [*warm_python, str(HERE / "generated.py"), json.dumps(engines), str(SEED), str(tmp_path / "log")]
    paths = python_path(HERE / "offload")
    environment = vllm_environment(
        VLLM_ENABLE_V1_MULTIPROCESSING="0", PYTHONPATH=paths, KVTRACE_TEST_SPEC_LOG=str(tmp_path / "spec.jsonl")
    )
    run = tmp_path / "run"
    done = kvtrace("record", "-o", run, "--", *script, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    done = kvtrace("ingest", run)
    assert done.returncode == 0, done.stderr
    path = run / "trace.duckdb"
    with package.open(path) as trace:
        ids = trace.sql(
            "SELECT engine_id FROM engine JOIN process ON engine_id = process_id ORDER BY started_ns", format="arrow"
        )
        refused = trace.sql(
            "SELECT engine_id, limit_need_blocks need, limit_free_blocks free, limit_kept_blocks kept "
            "FROM step_schedule "
            "WHERE admission_limit = 'kv_insufficient'",
            format="arrow",
        ).to_pylist()
        limits = trace.sql(
            "SELECT DISTINCT engine_id, admission_limit::VARCHAR reason FROM step_schedule", format="arrow"
        )
        drafts = trace.sql(
            "SELECT sum(accepted_tokens) accepted, sum(drafted_tokens) drafted FROM draft", format="arrow"
        )
        ends = trace.sql("SELECT DISTINCT finish_reason::VARCHAR reason FROM request", format="arrow")
    # vLLM refuses a request that needs more than is free beside what is to be kept free, here the watermark.
    assert all(row["need"] > row["free"] - row["kept"] for row in refused)
    fits = [row for row in refused if row["need"] <= row["free"]]
    assert {(row["engine_id"], row["kept"]) for row in fits} == {
        (ids["engine_id"][0].as_py(), int(0.1 * ENGINE["num_gpu_blocks_override"]))
    }
    limited = {(row["engine_id"], row["reason"]) for row in limits.to_pylist()}
    assert {engine for engine, reason in limited if reason == "remote_kv"} == {ids["engine_id"][-1].as_py()}
    assert "other" not in {reason for _, reason in limited}
    found = check_all(
        {name: (path, number) for name, number in zip(ENGINES, ids["engine_id"].to_pylist(), strict=True)}, tmp_path
    )
    # The workloads do what they are there for.
    assert {"abort", "length", "stop"} <= set(ends["reason"].to_pylist())
    assert all(each.recorded.hit_tokens and each.recorded.evictions for each in found.values())
    assert sum(each.recorded.preemptions for each in found.values()) > 10
    assert found["speculation"].recorded.preemptions
    assert 0 < drafts["accepted"][0].as_py() < drafts["drafted"][0].as_py()
