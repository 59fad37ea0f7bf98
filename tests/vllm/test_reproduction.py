"""Recordings of the other tests, replayed with recorded times: the same hits, evictions, preemptions and steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vllm.conftest import HERE, Recorded
from tests.vllm.reproduction import check_all


@pytest.mark.usefixtures("warm_replays")
def test_recordings_are_repeated(
    cached: Recorded,
    uncached: Recorded,
    tensor_parallel: Recorded,
    served: Recorded,
    subclassed: Recorded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=":")  # of the subclassed scheduler
    runs = {
        "cached": cached,
        "uncached": uncached,
        "tensor parallel": tensor_parallel,
        "served": served,
        "subclassed": subclassed,
    }
    found = check_all({name: recorded.run / "trace.duckdb" for name, recorded in runs.items()}, tmp_path)
    assert all(found[name].recorded.preemptions for name in runs)
    assert all(found[name].recorded.evictions for name in runs if name != "uncached")
