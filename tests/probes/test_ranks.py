"""Rank of an engine or worker, and half of a prefill/decode pair that a request is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.ingest.run import ingest
from kvtrace.probes.engine_facts import dp_rank
from kvtrace.probes.optional_attributes import OptionalAttributes
from kvtrace.probes.requests import _remotes


@pytest.mark.parametrize(
    ("config", "rank"),
    [
        ({"data_parallel_rank": 0, "data_parallel_index": 3}, 3),  # a dense model's engine: vLLM treats it as alone
        ({"data_parallel_rank": 2, "data_parallel_index": 2}, 2),
        ({"data_parallel_rank": 1, "data_parallel_index": None}, 1),
    ],
)
def test_the_data_parallel_rank_is_the_one_of_the_launch(config: dict[str, int | None], rank: int) -> None:
    assert dp_rank(SimpleNamespace(**config)) == rank


def test_halves_of_pairs_are_recorded_by_what_their_client_says(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.note("role", opens=True, role="engine")
    note = _remotes(recorder, OptionalAttributes(recorder))
    told: list[Any] = [
        {"do_remote_decode": True, "transfer_id": "t1"},
        {"do_remote_prefill": True, "remote_request_id": "p-1", "remote_block_ids": [1]},
        {"do_remote_prefill": False, "do_remote_decode": False},
        None,
        "do_remote_prefill",
    ]
    for number, parameters in enumerate(told):
        note(recorder.intern(f"r{number}"), SimpleNamespace(kv_transfer_params=parameters))
    note(recorder.intern("of a vLLM without them"), SimpleNamespace())
    with duckdb.connect(str(ingest(tmp_path).target), read_only=True) as trace:
        columns = "internal_id, part::VARCHAR, remote_request, transfer"
        sql = f"SELECT {columns} FROM request_remote JOIN request USING (request) ORDER BY 1"
        assert trace.execute(sql).fetchall() == [
            ("r0", "prefill", None, "t1"),
            ("r1", "decode", "p-1", None),
        ]
