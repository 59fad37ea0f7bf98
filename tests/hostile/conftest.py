"""Traces whose every text is hostile, or marked as a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.marked import make_marked


def hostile(table: str, column: str) -> str:
    """Steers a terminal, breaks lines, turns text around, and is HTML, Markdown, a formula and a template."""
    return (
        f"=1+1<img src=x onerror=alert('{table}.{column}')>\x1b[31m\u202e\r\n\x07|`[a](http://evil)`{{{{7*7}}}}$x$\"&"
    )


def secret(table: str, column: str) -> str:
    return f"secret/{table}/{column} é"


@pytest.fixture(scope="session")
def hostile_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "trace.duckdb"
    make_marked(path, hostile)
    return path
