from __future__ import annotations

from pathlib import Path

import pytest

from .simulate import create_trace


@pytest.fixture(scope="session")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One engine, 40 requests, evictions, preemptions. Not to be written to."""
    return create_trace(tmp_path_factory.mktemp("trace") / "trace.duckdb")
