"""What runs often is there twice, in C and in Python: tests of behaviour are run on both."""

from __future__ import annotations

import pytest

from kvtrace.stream import NATIVE_VARIABLE


@pytest.fixture(params=[pytest.param("1", id="compiled"), pytest.param("0", id="python")])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the compiled part is used: 1 or 0."""
    if request.param == "1":
        pytest.importorskip("kvtrace._native", reason="kvtrace was installed without its compiled part")
    monkeypatch.setenv(NATIVE_VARIABLE, request.param)
    return str(request.param)
