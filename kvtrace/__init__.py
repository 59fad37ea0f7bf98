"""kvtrace: see what happens to the KV cache inside a running vLLM.

`kvtrace.open(path)` opens an ingested trace for queries and returns a `kvtrace.Trace`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvtrace.queries import Trace

__all__ = ["Trace", "open"]
__version__ = "0.1.0"


def open(path: str | Path) -> Trace:  # noqa: A001 - reads as kvtrace.open()
    """Open a trace made by `kvtrace ingest`, read-only.

    Raises:
        kvtrace.errors.KvtraceError: the file is missing, is not a kvtrace trace, or DuckDB is not installed.
    """
    from kvtrace.errors import needs_analysis

    with needs_analysis():
        from kvtrace.queries import Trace
    return Trace(path)


def __getattr__(name: str) -> Any:
    """Return `Trace` when it is asked for: recording needs neither it nor DuckDB."""
    if name != "Trace":
        raise AttributeError(f"module 'kvtrace' has no attribute {name!r}")
    from kvtrace.errors import needs_analysis

    with needs_analysis():
        from kvtrace.queries import Trace
    return Trace
