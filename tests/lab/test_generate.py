"""The baseline on fixed batches, with a real model of the tiny shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvtrace.format import layout
from kvtrace.lab.generate import measure
from kvtrace.lab.matrix import Cell

pytest.importorskip("transformers")


def test_a_job_of_a_later_batch_waits_for_the_batches_before_it(tmp_path: Path) -> None:
    cell = Cell(
        study="study",
        axes={},
        model="tiny",
        policy={"name": "hf-generate", "batch": 2},
        kv_tokens=1600,
        phases=("w",),
        workloads={"w": {"kind": "fixed", "jobs": 4, "prompt": 16, "output": 3}},
    )
    facts: dict[str, Any] = {}
    measure(cell, tmp_path, tmp_path, facts)
    records = [json.loads(line) for line in (tmp_path / layout.CLIENT).read_text().splitlines()]
    assert [record["output_tokens"] for record in records] == [3, 3, 3, 3]
    assert len({(record["due_ns"], record["send_ns"]) for record in records}) == 1  # the client sent all at once
    one, _, three, four = records
    assert one["send_ns"] < one["first_token_ns"] < one["last_token_ns"] < three["first_token_ns"]
    assert three["first_token_ns"] == four["first_token_ns"]
