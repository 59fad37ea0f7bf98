"""The trace that queries are timed on keeps up with the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtrace.queries import Trace, catalogue

BENCH = Path(__file__).parents[2] / "bench"


def test_the_synthetic_trace_has_what_every_query_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    from synthetic import build

    build(tmp_path / "trace.duckdb", block_events=20_000)
    with Trace(tmp_path / "trace.duckdb") as trace:
        assert {name: trace.missing(name) for name in catalogue() if trace.missing(name)} == {}
