"""Recordings of real engines that replays are compared with, made once a session."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DEMO = HERE.parents[2] / "examples" / "demo.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.path.name not in (
            "test_advise.py",
            "test_settings.py",
            "test_recording.py",
        ):
            item.add_marker(pytest.mark.vllm)
            if importlib.util.find_spec("vllm") is None:
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed: make test installs it"))


def kvtrace(*arguments: str | int | Path, timeout: float = 400, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    command = [sys.executable, "-m", "kvtrace", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=timeout)
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def recorded(folder: Path, *command: str | Path) -> Path:
    """The trace of a command that starts vLLM."""
    kvtrace("record", "-o", folder / "run", "--", sys.executable, *command)
    kvtrace("ingest", folder / "run")
    return folder / "run" / "trace.duckdb"


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four turns of eight sessions on 47 blocks: hits, evictions and preemptions."""
    return recorded(tmp_path_factory.mktemp("demo"), DEMO)


@pytest.fixture(scope="session")
def served_mix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine with priorities whose clients come when they like, ask for samples and leave early."""
    return recorded(tmp_path_factory.mktemp("mix"), HERE / "mix.py")
