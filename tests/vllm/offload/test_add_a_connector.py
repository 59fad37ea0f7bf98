"""The page on adding a connector's adapter, followed: its example records a connector on an engine."""

from __future__ import annotations

import re
from pathlib import Path

from tests.vllm.offload.conftest import PASSES, RecordLedger
from tests.vllm.offload.engines import connector

PAGE = Path(__file__).parents[3] / "docs" / "add-a-connector.md"


def test_the_pages_adapter_records_the_connectors_transfers(record_ledger: RecordLedger, tmp_path: Path) -> None:
    # GIVEN the page's adapter, in a folder of its own, and the connector it is for
    example = re.search(r"`probes/connectors/adapters/(\w+\.py)`:\n\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example
    (tmp_path / example[1]).write_text(example[2])
    config = connector("MirrorConnector", "mirror", adapters=str(tmp_path))

    # WHEN an engine with it is recorded
    ledger = record_ledger("mirror", PASSES[:1], kv_transfer_config=config)

    # THEN each of its copies is there, with the request, blocks and bytes that the connector wrote down
    [role] = ledger.rows("SELECT DISTINCT connector, recorded FROM connector")
    assert role == {"connector": "MirrorConnector", "recorded": "in detail"}
    found = ledger.rows(
        "SELECT transfer & ((1::BIGINT << 40) - 1) AS job, list(gpu_block_id ORDER BY b.rowid) AS gpu, "
        "any_value(bytes) AS bytes FROM transfer JOIN transfer_block b USING (transfer) GROUP BY transfer ORDER BY job"
    )
    assert len(ledger.own) == 8
    assert found == ledger.own
    [tiers] = ledger.rows("SELECT DISTINCT direction, from_tier, to_tier, success FROM transfer")
    assert tiers == {"direction": "store", "from_tier": "gpu", "to_tier": "cpu", "success": True}
    [requests] = ledger.rows("SELECT count(DISTINCT request) AS n FROM transfer_block")
    assert requests == {"n": 8}
    assert ledger.rows("SELECT * FROM hook WHERE state = 'disabled'") == []
