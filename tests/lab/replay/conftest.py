"""Recordings of real engines that replays are compared with, made once a session."""

from __future__ import annotations

import importlib.util
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.vllm.conftest import ingested, vllm_environment
from tests.vllm.conftest import kvtrace as command

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


def kvtrace(*arguments: str | int | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = command(*arguments)
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def recorded(folder: Path, *words: str | Path) -> Path:
    """The trace of a command that starts vLLM."""
    done = command("record", "-o", folder / "run", "--", *words, env=vllm_environment(), timeout=400)
    return ingested(folder / "run", {}, done.stderr).run / "trace.duckdb"


@pytest.fixture(scope="session")
def demo(warm_replays: None, warm_python: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four turns of eight sessions on 47 blocks: hits, evictions and preemptions."""
    return recorded(tmp_path_factory.mktemp("demo"), *warm_python, DEMO)


def shipped(name: str, folder: Path) -> Path:
    """The trace of a recording that ships, of a GPU: its step times are the same in each run of the tests."""
    with tarfile.open(HERE.parents[2] / "examples" / "recordings" / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    trace = folder / f"{name}.duckdb"
    kvtrace("ingest", folder / name, "-o", trace)
    return trace


@pytest.fixture(scope="session")
def lmcache_h200(warm_replays: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shipped("lmcache-h200", tmp_path_factory.mktemp("lmcache"))


@pytest.fixture(scope="session")
def served_mix(warm_replays: None, warm_python: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine with priorities whose clients come when they like, ask for samples and leave early."""
    return recorded(tmp_path_factory.mktemp("mix"), *warm_python, HERE / "mix.py")
