"""Why vLLM skips a request before it asks for its blocks, on a real engine: a grammar, a LoRA adapter's place."""

from __future__ import annotations

import json
from pathlib import Path

from kvtrace.queries import Trace
from tests.vllm.conftest import HERE, ingested, kvtrace, vllm_environment
from tests.vllm.test_misses import MISSES, make_adapter


def test_a_grammar_and_an_adapters_place_are_told_as_what_a_request_waits_for(
    warm_python: list[str], tmp_path: Path
) -> None:
    engine = {**MISSES, "skip_tokenizer_init": False, "tokenizer": str(tmp_path / "tokenizer")}
    config = {"engine": engine, "adapter": str(make_adapter(tmp_path / "adapter"))}
    # In one process all requests are with the scheduler before its first step.
    environment = vllm_environment(VLLM_ENABLE_V1_MULTIPROCESSING="0")
    script = [*warm_python, str(HERE / "blocked.py"), json.dumps(config)]
    done = kvtrace("record", "-o", tmp_path / "run", "--", *script, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    trace: Trace = ingested(tmp_path / "run", {}, done.stderr).trace
    limits = trace.sql(
        "SELECT DISTINCT session, admission_limit::VARCHAR AS reason FROM step_schedule "
        "JOIN request ON request = limit_request ORDER BY ALL",
        format="arrow",
    ).to_pylist()
    assert {(row["session"], row["reason"]) for row in limits} == {
        ("another-adapter", "max_loras"), ("grammar", "grammar"),
    }  # fmt: skip
    found = {row["admission_limit"] for row in trace.query("request-queue", format="arrow").to_pylist()}
    assert {"max_loras", "grammar"} <= found
