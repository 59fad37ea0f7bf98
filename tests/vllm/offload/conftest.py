"""Recordings of engines with KV connectors and with a scheduler that pins, made once a session."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.beside import python_path
from tests.vllm.conftest import ENGINE, Recorded, ingested, kvtrace, vllm_environment
from tests.vllm.offload.engines import connector, connector_engines

HERE = Path(__file__).parent
PASSES = [[[20 + request, 100 + request, 8, None] for request in range(8)]] * 3
"""Eight prompts of three whole blocks and a little, three times; the GPU's pool holds half of them."""


class Ledger(NamedTuple):
    """A recorded run, and what the connector or the scheduler wrote down itself, a line an action."""

    recorded: Recorded
    own: list[dict[str, Any]]

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return self.recorded.trace.sql(sql, format="arrow").to_pylist()


RunLedger = Callable[[str, str, dict[str, Any]], Ledger]
RecordLedger = Callable[..., Ledger]


@pytest.fixture(scope="session")
def run_ledger(warm_python: list[str], tmp_path_factory: pytest.TempPathFactory) -> RunLedger:
    """Records a program of this folder, which is given its configuration and where to write."""

    def run(name: str, program: str, config: dict[str, Any]) -> Ledger:
        folder = tmp_path_factory.mktemp(name)
        script = [*warm_python, str(HERE / program), json.dumps(config), str(folder / "truth.json")]
        log = folder / "own.jsonl"
        log.touch()
        environment = vllm_environment(PYTHONPATH=python_path(HERE), KVTRACE_TEST_SPEC_LOG=str(log))
        done = kvtrace("record", "-o", folder / "run", "--", *script, env=environment, timeout=300)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]
        recorded = ingested(folder / "run", json.loads((folder / "truth.json").read_text()), done.stderr)
        return Ledger(recorded, [json.loads(line) for line in log.read_text().splitlines()])

    return run


@pytest.fixture(scope="session")
def record_ledger(run_ledger: RunLedger) -> RecordLedger:
    """Records rounds of requests; engine arguments can be overridden."""

    def record(name: str, rounds: Any = PASSES, wait_s: Any = None, **engine: Any) -> Ledger:
        config = {"engine": {**ENGINE, **engine}, "rounds": rounds, "wait_s": wait_s or [0] * len(rounds)}
        return run_ledger(name, "workload.py", config)

    return record


@pytest.fixture(scope="session")
def offloading(record_ledger: RecordLedger, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return record_ledger("offloading", **connector_engines(tmp_path_factory.mktemp("store"))["offloading"].engine)


@pytest.fixture(scope="session")
def simple_cpu(record_ledger: RecordLedger, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return record_ledger("simple_cpu", **connector_engines(tmp_path_factory.mktemp("store"))["simple-cpu"].engine)


@pytest.fixture(scope="session")
def disk(record_ledger: RecordLedger, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    vllm = importlib.util.find_spec("vllm")
    if vllm and not (Path(str(vllm.origin)).parent / "v1/simple_kv_offload/disk_backend.py").exists():
        pytest.skip("this vLLM has no disk backend: 0.28 was the first")
    return record_ledger("disk", **connector_engines(tmp_path_factory.mktemp("store"))["disk"].engine)


@pytest.fixture(scope="session")
def example(record_ledger: RecordLedger, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ledger, Path]:
    """The recording, and the folder that ExampleConnector keeps its files in."""
    folder = tmp_path_factory.mktemp("store")
    ledger = record_ledger("example", PASSES[:2], **connector_engines(folder)["example"].engine)
    return ledger, folder / "example"


def turn(token: int, length: int, job: str, tool: str | None = None) -> list[Any]:
    return [token, length, 8, {"kvtrace_session": job, **({"kvtrace_tool": tool} if tool else {})}]


@pytest.fixture(scope="session")
def ttl(record_ledger: RecordLedger) -> Ledger:
    """A pool of 21 blocks, jobs of 5 blocks (4 of them cached whole), a TTL of 1.5 s, or a minute (`LONG`).

    Jobs a and b pin. Job a's next turn comes; b's never does, and its pin expires before the third round. Job c's
    tool is slow by what is known, so it does not pin. In the third round d and e pin; the fourth needs 14 blocks while
    13 are free: the pin that ends last, e's or d's, must go.
    """
    rounds = [
        [turn(30, 130, "a", "fast"), turn(31, 130, "b", "fast"), turn(32, 130, "c", "slow")],
        [turn(30, 150, "a")],
        [turn(33, 130, "d", "fast"), turn(34, 130, "e", "fast")],
        [turn(35, 440, "big")],
    ]
    options = {"threshold_s": 4.0, "ttl_s": 1.5, "tool_s": {"fast": 0.1, "slow": 5.0}}
    return record_ledger(
        "ttl",
        rounds,
        [0, 0.2, 2.0, 0.1],
        scheduler_cls="logging_ttl.LoggingScheduler",
        additional_config={"kvtrace_ttl_pin": options},
    )


@pytest.fixture(scope="session")
def delaying(record_ledger: RecordLedger, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A connector that holds finished requests' blocks until it says so."""
    folder = str(tmp_path_factory.mktemp("store"))
    config = connector("DelayingConnector", "delaying", shared_storage_path=folder)
    return record_ledger("delaying", PASSES[:1], kv_transfer_config=config, max_num_batched_tokens=1024)


@pytest.fixture(scope="session")
def streaming(run_ledger: RunLedger) -> Ledger:
    """A streaming session; its own words are when it waited."""
    return run_ledger("streaming", "streaming.py", {**ENGINE, "disable_log_stats": True})
