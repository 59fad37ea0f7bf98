"""A prefill/decode pair of real engines with NIXL, CPU memory to CPU memory: the stages of its handovers.

NIXL's wheels need no GPU. `make test` installs them; elsewhere `pip install --no-deps nixl nixl-cu13`.
"""

from __future__ import annotations

import importlib.util
import time
from typing import Any, NamedTuple

import pytest

from kvtrace.ingest.run import ingest
from kvtrace.lab.warm import started
from kvtrace.queries import Trace
from tests.vllm.conftest import ENGINE, free_port, vllm_environment
from tests.vllm.offload.engines import BLOCK_BYTES
from tests.vllm.pair import Leg

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nixl") is None, reason="NIXL is not installed: pip install --no-deps nixl nixl-cu13"
)

BLOCK, LAYERS = ENGINE["block_size"], 4
PROMPTS = {f"pair-{number}": [20 + number] * (70 + 30 * number) for number in range(8)}
AGAIN = "pair-0-again"
READ = {**{name: -(-len(prompt) // BLOCK) for name, prompt in PROMPTS.items()}, AGAIN: 1}
"""Blocks that the decode engine reads of each."""
AT_ONCE = 4
FIRST = {"do_remote_decode": True, "do_remote_prefill": False}
STAGES = "intake", "scheduler", "dispatch", "handshake", "posting", "wire", "notification", "admission"


class Pair(NamedTuple):
    """Both recordings in one trace, what each engine answered, what the client saw, and vLLM's metrics of NIXL."""

    trace: Trace
    prefill: dict[str, dict[str, Any]]
    decode: dict[str, dict[str, Any]]
    ttft_ms: dict[str, float]
    metrics: dict[str, tuple[int, float]]
    summaries: list[str]

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return list(self.trace.sql(sql, format="arrow").to_pylist())


def request(name: str, prompt: list[int], max_tokens: int, params: dict[str, Any]) -> dict[str, Any]:
    return {"request_id": name, "prompt": prompt, "max_tokens": max_tokens, "kv_transfer_params": params}


@pytest.fixture(scope="module")
def pair(warm_python: list[str], tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Eight prompts, four at once; then the first again, of which the decode engine by then has the whole blocks."""
    folder = tmp_path_factory.mktemp("handover")
    engine = {**ENGINE, "max_num_batched_tokens": 1024, "num_gpu_blocks_override": 80}
    roles = {"prefill": "kv_producer", "decode": "kv_consumer"}
    answers: dict[str, dict[str, dict[str, Any]]] = {"prefill": {}, "decode": {}}
    ttft_ms: dict[str, float] = {}
    with started(environment=vllm_environment()) as another:
        legs = {}
        for python, (name, role) in zip((warm_python, another), roles.items(), strict=True):
            connector = {"kv_connector": "NixlConnector", "kv_role": role, "kv_buffer_device": "cpu"}
            # A busy machine takes longer for a handshake than the 30 s after which blocks are given up.
            connector["kv_connector_extra_config"] = {"kv_lease_duration": 600}
            environment = vllm_environment(
                VLLM_NIXL_SIDE_CHANNEL_PORT=str(free_port()), VLLM_CPU_OMP_THREADS_BIND="nobind"
            )
            legs[name] = Leg(python, folder / name, {**engine, "kv_transfer_config": connector}, environment)
        for leg in legs.values():
            leg.line()
        names = list(PROMPTS)
        for batch in [*(names[first : first + AT_ONCE] for first in range(0, len(names), AT_ONCE)), names[:1]]:
            asked = {AGAIN if name in ttft_ms else name: PROMPTS[name] for name in batch}
            computed = legs["prefill"].ask_all([request(name, prompt, 1, FIRST) for name, prompt in asked.items()])
            sent_ns = time.time_ns()
            params = {name: answer["kv_transfer_params"] for name, answer in computed.items()}
            done = legs["decode"].ask_all([request(name, prompt, 2, params[name]) for name, prompt in asked.items()])
            answers["prefill"] |= computed
            answers["decode"] |= done
            ttft_ms |= {name: (answer["first_token_ns"] - sent_ns) / 1e6 for name, answer in done.items()}
        time.sleep(0.5)  # the prefill engine hears of the last ones
        legs["decode"].send("metrics")
        metrics = legs["decode"].line()
        summaries = [leg.close() for leg in legs.values()]
    trace = Trace(ingest([folder / "prefill", folder / "decode"], folder / "trace.duckdb").target)
    found = {name: (count, total) for name, (count, total) in metrics.items()}
    return Pair(trace, answers["prefill"], answers["decode"], ttft_ms, found, summaries)


@pytest.fixture(scope="module")
def stages(pair: Pair) -> dict[str, dict[str, Any]]:
    return {row["external_id"]: row for row in pair.trace.query("handover-stages", format="arrow").to_pylist()}


def test_the_engines_answer_as_one(pair: Pair) -> None:
    """NIXL brought the right KV: the decode engine's first token is the prefill engine's. No hook failed."""
    assert set(pair.decode) == set(READ)
    for name, answer in pair.decode.items():
        assert answer["tokens"][:1] == pair.prefill[name]["tokens"]
        assert len(answer["tokens"]) == 2
    assert pair.rows("SELECT * FROM hook WHERE state = 'disabled'") == []
    assert not any("lost" in summary for summary in pair.summaries)
    roles = {(row["role"], row["recorded"]) for row in pair.rows("SELECT role, recorded FROM connector")}
    assert roles == {("scheduler", "in detail"), ("worker", "in detail")}


def test_the_stages_of_each_handover_add_up_to_its_latency(pair: Pair, stages: dict[str, dict[str, Any]]) -> None:
    assert list(stages) == list(READ), "in order"
    for name, row in stages.items():
        parts = [row[f"{stage}_ms"] for stage in STAGES]
        assert min(parts) >= 0, row
        assert sum(parts) == pytest.approx(row["latency_ms"], rel=0.01)
        assert abs(row["residual_ms"]) <= 0.01 * row["latency_ms"]
        assert 0 < row["latency_ms"] < pair.ttft_ms[name]
        assert row["uncertainty_ms"] == 0
        # NIXL's end is in whole microseconds, and it notifies before it tells. Its time counts the processor's cycles,
        # and was seen 0.03% off.
        assert row["release_ms"] > -0.1 - row["nixl_ms"] * 0.001
        assert (row["reads"], row["failed_reads"]) == (1, 0)
        assert row["wire_least_ms"] <= row["wire_ms"]
        # NIXL's own time begins within the posting.
        assert 0 < row["nixl_post_ms"] <= row["posting_ms"] * 1.001
        assert row["nixl_post_ms"] <= row["nixl_ms"] + 0.002
        assert 0 <= row["nixl_ms"] <= (row["posting_ms"] + row["wire_ms"]) * 1.001 + 0.002
    handshakes = sorted(row["handshake_ms"] for row in stages.values())
    assert stages["pair-0"]["handshake_ms"] > handshakes[len(handshakes) // 2], "the first one met the other engine"


def test_reads_are_what_vllm_counts(pair: Pair, stages: dict[str, dict[str, Any]]) -> None:
    """A descriptor is a block of a layer. vLLM's metrics add up the same telemetry."""
    for name, row in stages.items():
        assert row["descriptors"] == READ[name] * LAYERS
        assert row["bytes"] == READ[name] * BLOCK_BYTES
        assert 0 < row["posted_descriptors"] <= row["descriptors"]
    columns = {"bytes_transferred": "bytes", "num_descriptors": "posted_descriptors"}
    for metric, column in columns.items():
        assert pair.metrics[f"vllm:nixl_{metric}"] == (len(stages), sum(row[column] for row in stages.values()))
    [told] = pair.rows("SELECT sum(wire_ns) / 1e9 AS xfer, sum(post_ns) / 1e9 AS post FROM handover_read")
    for metric, seconds in told.items():
        assert pair.metrics[f"vllm:nixl_{metric}_time_seconds"] == (len(stages), pytest.approx(seconds, abs=1e-9))


def test_the_prefill_engine_is_told_of_every_read_before_it_frees_the_blocks(pair: Pair) -> None:
    found = pair.rows(
        "SELECT r.external_id, n.time_ns AS notice_ns, min(p.end_ns) AS free_ns FROM handover_notice n "
        "JOIN request r ON r.request = n.request AND r.engine_id = n.engine_id "
        "JOIN pin p ON p.request = n.request AND p.cause = 'delayed_free' GROUP BY ALL"
    )
    assert {row["external_id"] for row in found} == set(READ)
    assert all(row["notice_ns"] < row["free_ns"] for row in found)


def test_reads_are_transfers_with_blocks_of_both_engines(pair: Pair) -> None:
    found = pair.rows(
        "SELECT r.external_id, t.blocks, t.bytes, t.success, t.from_tier::VARCHAR || ' ' || t.to_tier AS way, "
        "list(b.other_block_id ORDER BY b.rowid) AS theirs, count(b.block_hash) AS hashed "
        "FROM transfer t JOIN transfer_block b USING (engine_id, transfer) JOIN request r USING (request) GROUP BY ALL"
    )
    assert {row["external_id"] for row in found} == set(READ)
    for row in found:
        name = row["external_id"]
        assert row["theirs"] == pair.prefill[name]["kv_transfer_params"]["remote_block_ids"][0][-READ[name] :]
        assert (row["blocks"], row["bytes"]) == (READ[name], READ[name] * BLOCK_BYTES)
        assert (row["success"], row["way"]) == (True, "remote gpu")
        whole = 0 if name == AGAIN else len(PROMPTS[name]) // BLOCK
        assert row["hashed"] == whole, "each whole block's content is known"


def test_explain_names_the_stages(pair: Pair, stages: dict[str, dict[str, Any]]) -> None:
    from kvtrace.queries.explain import explain
    from kvtrace.queries.identify import Subject

    row = stages["pair-5"]
    for subject, expected in (("decode_request", "posting"), ("prefill_request", "read by")):
        sections = {one.title: dict(one.facts) for one in explain(pair.trace, Subject("request", row[subject]))}
        assert expected in sections["Its handover"], sections
