"""Recordings of engines with connectors and pins, replayed with recorded times; what cannot be replayed says why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvtrace.errors import KvtraceError
from kvtrace.lab.warm import started
from tests.vllm.conftest import vllm_environment
from tests.vllm.offload.conftest import HERE, Ledger
from tests.vllm.offload.engines import BLOCK_BYTES
from tests.vllm.reproduction import check_all, repeated

pytestmark = pytest.mark.usefixtures("warm_replays")


def test_pins_are_repeated(ttl: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of pins and tools are the recorded ones."""
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=":")  # of the logging scheduler
    monkeypatch.setenv("KVTRACE_TEST_SPEC_LOG", str(tmp_path / "own.jsonl"))
    found = check_all({"ttl": ttl.recorded.run / "trace.duckdb"}, tmp_path)
    assert found["ttl"].agreement.identical_blocks == 1
    assert ttl.rows("SELECT count(*) AS pins FROM pin_start WHERE cause = 'ttl'")[0]["pins"]


def test_engines_with_connectors_are_repeated(
    offloading: Ledger, simple_cpu: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests and loads end several at once, and vLLM tells its connectors so by sets of their ids.

    The replays have a hash seed of their own. The fixtures' interpreter gives its forks the one that recorded.
    """
    traces = {
        name: ledger.recorded.run / "trace.duckdb"
        for name, ledger in (("offloading", offloading), ("simple", simple_cpu))
    }
    # The engine ran a subclass of vLLM's connector, so that it is named here.
    told = {"simple": ["connector=simple-cpu-offload", f"cpu_bytes_to_use={30 * BLOCK_BYTES}"]}
    with started(environment=vllm_environment(PYTHONHASHSEED="1")) as python:
        monkeypatch.setattr("kvtrace.lab.replay.run.PYTHON", python)
        found = check_all(traces, tmp_path, told)
    assert {name: each.agreement.identical_blocks for name, each in found.items()} == {"offloading": 1, "simple": 1}
    for ledger in (offloading, simple_cpu):
        moved = ledger.rows("SELECT DISTINCT direction::VARCHAR AS direction FROM transfer ORDER BY 1")
        assert [row["direction"] for row in moved] == ["load", "store"]
        at_once = ledger.rows(
            "SELECT DISTINCT op::VARCHAR AS op FROM connector_news GROUP BY step, op HAVING count(*) > 1"
        )
        assert "ended" in {row["op"] for row in at_once}


_BUILT = "only the scheduler sides of OffloadingConnector and SimpleCPUOffloadConnector"
REFUSED = {
    "disk": f"had a KV connector (MultiConnector): {_BUILT}",
    "delaying": f"had a KV connector (DelayingConnector): {_BUILT}",
    "streaming": "cannot be replayed: requests got their prompts in parts (streaming sessions)",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_replayed_says_why(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    ledger: Ledger = request.getfixturevalue(name)
    with pytest.raises(KvtraceError, match=re.escape(REFUSED[name])) as refused:
        repeated(ledger.recorded.run / "trace.duckdb", None, tmp_path)
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)
