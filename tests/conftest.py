"""Groups of tests that share a process when files run side by side: a file's, and those of one recording."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.traces import copy_schemas
from tests.viewer.chromium import Chromium, Tab, find_browser

HERE = Path(__file__).parent
# How long an example takes depends on what else the machine does: benchmarks tell that, not these tests.
settings.register_profile("kvtrace", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvtrace")
RECORDINGS = [
    f"tests/vllm/test_{name}.py"
    for name in ("live", "truth", "misses", "privacy", "reproduction", "reuse", "flight", "launches")
]
SHARED = dict.fromkeys(RECORDINGS, "tests/vllm")
SHARED_FOLDERS = {"tests/vllm/offload", "tests/lab/replay", "tests/site"}


def group_of(node_id: str) -> str:
    """The name of the tests that must run in the process of this one, because they share its fixtures."""
    file = node_id.partition("::")[0]
    folder = file.rpartition("/")[0]
    return folder if folder in SHARED_FOLDERS else SHARED.get(file, file)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    if find_browser() is None:
        pytest.skip("no chromium in PATH; apt-get install -y chromium")
    with Chromium() as browser:
        yield browser


@pytest.fixture
def tab(chromium: Chromium) -> Iterator[Tab]:
    """Goes on in an empty tab of a given size."""
    yield chromium.tab
    chromium.tab()


@pytest.fixture(scope="session")
def warm_python() -> Iterator[list[str]]:
    """Command of an interpreter that has imported vLLM. Engines that it runs fork their processes, as on a GPU."""
    from kvtrace.lab.warm import started
    from tests.vllm.conftest import vllm_environment

    with started(environment=vllm_environment()) as python:
        yield python


@pytest.fixture(scope="session")
def warm_replays(warm_python: list[str]) -> Iterator[None]:
    """Replays of this process take that interpreter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvtrace.lab.replay.run.PYTHON", warm_python)
        yield


def pytest_configure() -> None:
    # What a shell runs in the background ignores Ctrl-C, and so do its children, where tests press it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    copy_schemas()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Those that start engines take longest: first, so that no process is left alone with them at the end.
    items.sort(key=lambda item: (HERE / "vllm" not in item.path.parents, group_of(item.nodeid)))


def pytest_collection_finish() -> None:
    # What was collected stays: it need not be looked through each time that Python collects garbage.
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries that look for what is left in the end would tell of all of it


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByRecording(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return ByRecording(config, log)
