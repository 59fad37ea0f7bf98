"""The trace that queries are timed on keeps up with the tables."""

from __future__ import annotations

from pathlib import Path

from kvtrace.queries import Trace, catalogue


def test_the_synthetic_trace_has_what_every_query_needs(synthetic: Path) -> None:
    with Trace(synthetic) as trace:
        assert {name: trace.missing(name) for name in catalogue() if trace.missing(name)} == {}
