"""A prefill/decode pair of real engines, recorded apart and merged: hand-overs, clocks, the split of the TTFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvtrace.ingest.run import ingest
from kvtrace.lab.warm import started
from kvtrace.queries import Trace
from tests.ingest.other_host import on_another_host
from tests.vllm.conftest import ENGINE, vllm_environment
from tests.vllm.pair import Leg, drive

PROMPTS = [[20 + number] * 100 + [5] * (40 + 16 * number) for number in range(8)]
OUTPUT_TOKENS = 12
AHEAD_NS = 3_723_456_789


class Pair(NamedTuple):
    """The run directories of both engines and of their client, and what the client saw."""

    prefill: Path
    decode: Path
    router: Path
    seen: list[dict[str, Any]]


@pytest.fixture(scope="module")
def pair(warm_python: list[str], tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    extra = {"shared_storage_path": str(folder / "store")}
    connector = {"kv_connector": "ExampleConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    # ExampleConnector cannot load prompts that were stored in chunks.
    engine = {**ENGINE, "max_num_batched_tokens": 1024, "num_gpu_blocks_override": 40, "kv_transfer_config": connector}
    with started(environment=vllm_environment()) as another:  # each runs one program at a time
        pythons = {"prefill": warm_python, "decode": another}
        legs = [Leg(python, folder / name, engine, vllm_environment()) for name, python in pythons.items()]
        seen = drive(*legs, PROMPTS, OUTPUT_TOKENS)
        for leg in legs:
            leg.close()
    return Pair(folder / "prefill", folder / "decode", folder / "router", seen)


@pytest.fixture(scope="module")
def together(pair: Pair) -> Trace:
    return Trace(ingest(pair[:3], pair.prefill.parent / "together.duckdb").target)


def handovers(trace: Trace) -> list[dict[str, Any]]:
    return list(trace.query("handover-latency", format="arrow").to_pylist())


def test_every_request_is_joined_with_its_other_half(together: Trace, pair: Pair) -> None:
    found = handovers(together)
    assert [row["external_id"] for row in found] == [seen["request_id"] for seen in pair.seen]
    assert {(row["prefill_engine_id"] < row["decode_engine_id"], row["uncertainty_ms"]) for row in found} == {(True, 0)}
    block = ENGINE["block_size"]
    assert [row["loaded_tokens"] for row in found] == [(len(prompt) - 1) // block * block for prompt in PROMPTS]


def test_the_parts_add_up_and_fit_into_what_the_client_saw(together: Trace, pair: Pair) -> None:
    for row, seen in zip(handovers(together), pair.seen, strict=True):
        parts = ("prefill_queue", "prefill", "handover", "decode_queue", "transfer", "decode")
        assert all(row[f"{part}_ms"] > 0 for part in parts), row
        assert sum(row[f"{part}_ms"] for part in parts) == pytest.approx(row["ttft_ms"])
        assert row["ttft_ms"] < (seen["first_token_ns"] - seen["send_ns"]) / 1e6


def test_a_clock_that_was_set_is_found_out(together: Trace, pair: Pair, tmp_path: Path) -> None:
    """The decode engine on another host, an hour ahead: the same durations, within the uncertainty."""
    other = on_another_host(pair.decode, tmp_path / "decode", "elsewhere", AHEAD_NS)
    summary = ingest([pair.prefill, other, pair.router], tmp_path / "trace.duckdb")
    correction = summary.clocks.corrections[2]
    assert correction.method == "hand_overs"
    assert correction.uncertainty_ns is not None
    assert abs(correction.correction_ns + AHEAD_NS) <= correction.uncertainty_ns < 100_000_000
    with Trace(summary.target) as trace:
        for row, true in zip(handovers(trace), handovers(together), strict=True):
            assert abs(row["ttft_ms"] - true["ttft_ms"]) <= row["uncertainty_ms"] + 0.001
            for part in ("prefill", "decode", "transfer"):
                assert row[f"{part}_ms"] == pytest.approx(true[f"{part}_ms"], abs=1e-6)
        [summed] = trace.query("run-summary", format="arrow").to_pylist()
        assert (summed["hosts"], summed["engines"]) == (2, 2)
        assert summed["clock_uncertainty_ms"] >= correction.uncertainty_ns / 1e6
