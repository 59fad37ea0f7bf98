"""A prefill/decode pair of real engines with NIXL, CPU memory to CPU memory: the stages of its handovers.

NIXL's wheels need no GPU. `make test` installs them; elsewhere `pip install --no-deps nixl nixl-cu13`.
"""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass, field
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
ASTRAY = "pair-astray"
"""One whose decode engine is sent to a prefill engine that is not there."""
AT_ONCE, TRIALS = 4, 5
FIRST = {"do_remote_decode": True, "do_remote_prefill": False}
STAGES = "intake", "scheduler", "dispatch", "handshake", "posting", "wire", "notification", "admission"


@dataclass
class Router:
    """Sends requests through both engines, as vLLM's proxies do; what each answered, and what the client saw."""

    legs: dict[str, Leg]
    prefill: dict[str, dict[str, Any]] = field(default_factory=dict)
    decode: dict[str, dict[str, Any]] = field(default_factory=dict)
    ttft_ms: dict[str, float] = field(default_factory=dict)

    def hand_over(self, asked: dict[str, list[int]], **wrong: object) -> None:
        """Run requests at once; the decode engine is told what the prefill engine said, but for what is `wrong`."""
        computed = self.legs["prefill"].ask_all([request(name, prompt, 1, FIRST) for name, prompt in asked.items()])
        sent_ns = time.time_ns()
        told = {name: {**answer["kv_transfer_params"], **wrong} for name, answer in computed.items()}
        done = self.legs["decode"].ask_all([request(name, prompt, 2, told[name]) for name, prompt in asked.items()])
        self.prefill |= computed
        self.decode |= done
        self.ttft_ms |= {name: (answer["first_token_ns"] - sent_ns) / 1e6 for name, answer in done.items()}

    def meet(self) -> str:
        """Hand a prompt of one block over until it arrives.

        vLLM gives a handshake up after 5 s, and with it the request that asked for it. A machine that stalls takes
        longer.
        """
        for name in (f"pair-meets-{trial}" for trial in range(TRIALS)):
            self.hand_over({name: [10] * BLOCK})
            if self.decode[name]["tokens"]:
                return name
        raise AssertionError(f"no handshake in {TRIALS} trials:\n{self.legs['decode'].said()}")


class Pair(NamedTuple):
    """Both recordings as one trace, their router, the request that made them meet, and vLLM's metrics of NIXL."""

    trace: Trace
    router: Router
    met: str
    metrics: dict[str, tuple[int, float]]
    summaries: list[str]

    @property
    def read(self) -> dict[str, int]:
        """The requests that were handed over, in order, and how many blocks the decode engine read of each."""
        return {self.met: 1, **READ}

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return list(self.trace.sql(sql, format="arrow").to_pylist())


def request(name: str, prompt: list[int], max_tokens: int, params: dict[str, Any]) -> dict[str, Any]:
    return {"request_id": name, "prompt": prompt, "max_tokens": max_tokens, "kv_transfer_params": params}


@pytest.fixture(scope="module")
def pair(warm_python: list[str], tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Eight prompts, four at once; the first again, of which the decode engine has the whole blocks; one that fails."""
    folder = tmp_path_factory.mktemp("handover")
    engine = {**ENGINE, "max_num_batched_tokens": 1024, "num_gpu_blocks_override": 80}
    roles = {"prefill": "kv_producer", "decode": "kv_consumer"}
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
        router = Router(legs)
        met = router.meet()
        names = list(PROMPTS)
        for batch in (names[:AT_ONCE], names[AT_ONCE:]):
            router.hand_over({name: PROMPTS[name] for name in batch})
        router.hand_over({AGAIN: PROMPTS["pair-0"]})
        router.hand_over({ASTRAY: [40] * 50}, remote_engine_id="nobody", remote_port=free_port())
        time.sleep(0.5)  # the prefill engine hears of the last ones
        legs["decode"].send("metrics")
        metrics = legs["decode"].line()
        summaries = [leg.close() for leg in legs.values()]
    trace = Trace(ingest([folder / "prefill", folder / "decode"], folder / "trace.duckdb").target)
    found = {name: (count, total) for name, (count, total) in metrics.items()}
    return Pair(trace, router, met, found, summaries)


@pytest.fixture(scope="module")
def stages(pair: Pair) -> dict[str, dict[str, Any]]:
    return {row["external_id"]: row for row in pair.trace.query("handover-stages", format="arrow").to_pylist()}


def test_the_engines_answer_as_one(pair: Pair) -> None:
    """NIXL brought the right KV: the decode engine's first token is the prefill engine's. No hook failed."""
    for name in pair.read:
        answer = pair.router.decode[name]
        assert answer["tokens"][:1] == pair.router.prefill[name]["tokens"]
        assert len(answer["tokens"]) == 2
    assert pair.rows("SELECT * FROM hook WHERE state = 'disabled'") == []
    assert not any("lost" in summary for summary in pair.summaries)
    roles = {(row["role"], row["recorded"]) for row in pair.rows("SELECT role, recorded FROM connector")}
    assert roles == {("scheduler", "in detail"), ("worker", "in detail")}


def test_the_stages_of_each_handover_add_up_to_its_latency(pair: Pair, stages: dict[str, dict[str, Any]]) -> None:
    assert list(stages) == list(pair.read), "in order"
    for name, row in stages.items():
        parts = [row[f"{stage}_ms"] for stage in STAGES]
        assert min(parts) >= 0, row
        assert sum(parts) == pytest.approx(row["latency_ms"], rel=0.01)
        assert abs(row["residual_ms"]) <= 0.01 * row["latency_ms"]
        assert 0 < row["latency_ms"] < pair.router.ttft_ms[name]
        assert row["uncertainty_ms"] == 0
        # NIXL's end is in whole microseconds, and it notifies before it tells: anywhere in its own time, if other
        # processes run in between. That counts the processor's cycles, and was seen 0.03% off.
        assert row["release_ms"] > -0.1 - row["nixl_ms"] * 1.001
        assert (row["reads"], row["failed_reads"]) == (1, 0)
        assert row["wire_least_ms"] <= row["wire_ms"]
        # NIXL's own time begins within the posting.
        assert 0 < row["nixl_post_ms"] <= row["posting_ms"] * 1.001
        assert row["nixl_post_ms"] <= row["nixl_ms"] + 0.002
        assert 0 <= row["nixl_ms"] <= (row["posting_ms"] + row["wire_ms"]) * 1.001 + 0.002
    handshakes = sorted(row["handshake_ms"] for row in stages.values())
    assert stages[pair.met]["handshake_ms"] > handshakes[len(handshakes) // 2], "the first one met the other engine"


def test_reads_are_what_vllm_counts(pair: Pair, stages: dict[str, dict[str, Any]]) -> None:
    """A descriptor is a block of a layer. vLLM's metrics add up the same telemetry."""
    for name, row in stages.items():
        assert row["descriptors"] == pair.read[name] * LAYERS
        assert row["bytes"] == pair.read[name] * BLOCK_BYTES
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
    assert {row["external_id"] for row in found} == set(pair.read)
    assert all(row["notice_ns"] < row["free_ns"] for row in found)


def test_reads_are_transfers_with_blocks_of_both_engines(pair: Pair) -> None:
    found = pair.rows(
        "SELECT r.external_id, t.blocks, t.bytes, t.success, t.from_tier::VARCHAR || ' ' || t.to_tier AS way, "
        "list(b.other_block_id ORDER BY b.rowid) AS theirs, count(b.block_hash) AS hashed "
        "FROM transfer t JOIN transfer_block b USING (engine_id, transfer) JOIN request r USING (request) GROUP BY ALL"
    )
    assert {row["external_id"] for row in found} == set(pair.read)
    for row in found:
        name = row["external_id"]
        [asked] = pair.router.prefill[name]["kv_transfer_params"]["remote_block_ids"]
        assert row["theirs"] == asked[-pair.read[name] :]
        assert (row["blocks"], row["bytes"]) == (pair.read[name], pair.read[name] * BLOCK_BYTES)
        assert (row["success"], row["way"]) == (True, "remote gpu")
        whole = 1 if name == pair.met else 0 if name == AGAIN else len(PROMPTS[name]) // BLOCK
        assert row["hashed"] == whole, "each whole block's content is known"


def test_a_load_that_never_began_is_told(pair: Pair) -> None:
    """An engine that is not there: after 5 s vLLM gives it up and ends the request with an error."""
    from kvtrace.queries.explain import explain
    from kvtrace.queries.findings import find_findings
    from kvtrace.queries.identify import Subject

    rows = {row["external_id"]: row for row in pair.trace.query("failed-loads", format="arrow").to_pylist()}
    unmet = set(pair.router.decode) - set(pair.read) - {ASTRAY}
    assert set(rows) == {ASTRAY, *unmet}
    row = rows[ASTRAY]
    assert pair.router.decode[ASTRAY]["tokens"] == []
    assert (row["blocks"], row["transfers"], row["finish_reason"], row["outcome"]) == (2, 0, "error", "ended")
    assert 5000 < row["load_ms"] < pair.router.ttft_ms[ASTRAY]
    [finding] = [each for each in find_findings(pair.trace) if each.rule == "failed_loads"]
    assert "failed, before anything was transferred" in finding.text
    head, *_ = explain(pair.trace, Subject("request", row["request"]))
    assert dict(head.facts)["load failed"].endswith("before anything was transferred; so it ended")


def test_explain_names_the_stages(pair: Pair, stages: dict[str, dict[str, Any]]) -> None:
    from kvtrace.queries.explain import explain
    from kvtrace.queries.identify import Subject

    row = stages["pair-5"]
    for subject, expected in (("decode_request", "posting"), ("prefill_request", "read by")):
        sections = {one.title: dict(one.facts) for one in explain(pair.trace, Subject("request", row[subject]))}
        assert expected in sections["Its handover"], sections
