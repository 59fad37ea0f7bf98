"""NVTX where nobody listens, or where the package is missing: nothing happens, and the journal says why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.format.reader import open_recording
from kvtrace.probes.nvtx import Ranges, is_wanted


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"KVTRACE_NVTX": "1"}, True),
        ({"KVTRACE_NVTX": "0"}, False),
        ({"NVTX_INJECTION64_PATH": "/opt/tool.so"}, True),
        ({"NVTX_INJECTION64_PATH": ""}, False),
        ({"QUADD_INJECTION_PROXY": "NVTX"}, True),
        ({"NV_NVTX_VERSION": "13.0.85-1"}, False),  # CUDA images set it: not a profiler
    ],
)
def test_a_profiler_that_may_listen_is_told_by_its_environment(environment: dict[str, str], wanted: bool) -> None:
    assert is_wanted(environment) is wanted


def speak(run_dir: Path) -> dict[str, Any]:
    """Go through a step; what the journal says about NVTX."""
    recorder = Recorder(run_dir)
    recorder.note("role", opens=True, role="engine")
    ranges = Ranges(recorder)
    engine: Any = SimpleNamespace(step=1, in_range=False, pool=SimpleNamespace(evicted=3))
    ranges.start()
    ranges.begin_step(engine, 1)
    ranges.begin_forward(1, 2)
    ranges.preempted(1)
    ranges.end_forward()
    assert not ranges.begin_sample()
    ranges.scheduled(engine)
    ranges.offloaded(4)
    ranges.end_step(engine)
    (run_dir / "manifest.json").write_text(json.dumps({"format_version": 1}))
    [process] = open_recording(run_dir).processes
    return process.nvtx


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nvtx")
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    assert speak(tmp_path) == {"state": "unheard"}


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    said = speak(tmp_path)
    assert said["state"] == "absent"
    assert "nvtx cannot be imported" in said["detail"]
