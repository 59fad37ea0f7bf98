"""Things that keep a request from blocks, on a real engine: a grammar, a LoRA adapter's place, large blocks."""

from __future__ import annotations

import json

import pytest

from kvtrace.queries import Trace
from tests.vllm.conftest import HERE, ingested, kvtrace, vllm_environment
from tests.vllm.test_misses import MISSES, make_adapter


@pytest.fixture(scope="module")
def trace(warm_python: list[str], tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("blocked")
    tokenizer = {"skip_tokenizer_init": False, "tokenizer": str(folder / "tokenizer")}
    config = {"engine": {**MISSES, **tokenizer, "block_size": 128}, "adapter": str(make_adapter(folder / "adapter"))}
    # In one process all requests are with the scheduler before its first step.
    environment = vllm_environment(VLLM_ENABLE_V1_MULTIPROCESSING="0")
    script = [*warm_python, str(HERE / "blocked.py"), json.dumps(config)]
    done = kvtrace("record", "-o", folder / "run", "--", *script, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return ingested(folder / "run", {}, done.stderr).trace  # type: ignore[no-any-return]


def test_a_grammar_and_an_adapters_place_are_told_as_what_a_request_waits_for(trace: Trace) -> None:
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


def test_requests_that_share_less_than_a_block_are_told_apart_from_those_that_share_nothing(trace: Trace) -> None:
    rows = {row["session"]: row for row in trace.query("prefix-miss", format="arrow").to_pylist()}
    found = {case: (rows[case]["verdict"], rows[case]["known_tokens"]) for case in ("first", "second", "third")}
    assert found == {"first": ("never_stored", 0), "second": ("part_of_block", 64), "third": ("never_stored", 0)}
    assert "had at least its first 64 tokens, too, but not all of block 0, which has 128." in rows["second"]["why"]
