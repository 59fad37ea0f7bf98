"""Recordings of engines with connectors and pins, replayed with recorded times; what cannot be replayed says why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvtrace.errors import KvtraceError
from kvtrace.queries import Trace
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


def test_copies_of_a_simple_cpu_offload_are_repeated(simple_cpu: Ledger, tmp_path: Path) -> None:
    """The engine ran a subclass of vLLM's connector, so that it is named here."""
    trace = simple_cpu.recorded.run / "trace.duckdb"
    found = repeated(trace, None, tmp_path, ["connector=simple-cpu-offload", f"cpu_bytes_to_use={30 * BLOCK_BYTES}"])
    found.check()
    # Where several loads end with one step vLLM takes them from a set, so their blocks are released in any order.
    operations = "SELECT step, op::VARCHAR AS op, block_id FROM block_event WHERE pool = 0 ORDER BY ALL"
    with Trace(tmp_path / "again.duckdb") as again:
        assert again.sql(operations, format="arrow").to_pylist() == simple_cpu.rows(operations)
    moved = "SELECT direction::VARCHAR AS direction, count(*) AS n FROM transfer GROUP BY 1 ORDER BY 1"
    assert {row["direction"] for row in simple_cpu.rows(moved)} == {"load", "store"}


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
