from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .chromium import Chromium, find_browser
from .simulate import create_trace


@pytest.fixture(scope="session")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One engine, 40 requests, evictions, preemptions. Not to be written to."""
    return create_trace(tmp_path_factory.mktemp("trace") / "trace.duckdb")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    if find_browser() is None:
        pytest.skip("no chromium in PATH; apt-get install -y chromium")
    with Chromium() as browser:
        yield browser
