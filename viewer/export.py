"""Turns a trace into the document a page shows. `docs/viewer.md` describes the document."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtrace import __version__
from kvtrace.viewer import summary
from kvtrace.viewer.encode import Document
from kvtrace.viewer.lanes import STATES
from kvtrace.viewer.requests import export_requests
from kvtrace.viewer.source import Source
from kvtrace.viewer.steps import export_steps

FORMAT = "kvtrace-page"
VERSION = 1
"""Raised when a column changes its meaning or goes; added ones do not raise it."""

MAX_STEP_ROWS = 20_000
MAX_REQUESTS = 5_000


@dataclass(frozen=True)
class _Bounds:
    """What every engine of a page shares: time zero, the end (UNIX ns), and how much of each may be drawn."""

    origin_ns: int
    last_ns: int
    max_step_rows: int
    max_requests: int


def export(path: Path, max_step_rows: int = MAX_STEP_ROWS, max_requests: int = MAX_REQUESTS) -> Document:
    """Read the document for the trace at `path`; the limits are for all engines together.

    Raises:
        KvtraceError: the file is missing or is not a trace this kvtrace reads.
    """
    with Source(path) as source:
        facts = summary.run_facts(source)
        first_ns, last_ns = summary.span(source)
        started = dict(facts).get("started_ns") or ""
        origin_ns = int(started) if started.isdigit() else first_ns or 0
        engines = summary.engines(source)
        share = max(1, len(engines))
        bounds = _Bounds(origin_ns, last_ns or origin_ns, -(-max_step_rows // share), -(-max_requests // share))
        return {
            "format": FORMAT,
            "version": VERSION,
            "kvtrace_version": __version__,
            "origin": "recording start" if started.isdigit() else "first event",
            "origin_ns": str(origin_ns),
            "first_ns": None if first_ns is None else first_ns - origin_ns,
            "last_ns": None if last_ns is None else last_ns - origin_ns,
            "states": STATES,
            "run": facts,
            "processes": summary.processes(source),
            "notes": summary.notes(source, facts),
            "engines": [_export_engine(source, engine, bounds) for engine in engines],
        }


def _export_engine(source: Source, facts: dict[str, Any], bounds: _Bounds) -> dict[str, Any]:
    engine = facts["engine_id"]
    return {
        "facts": facts,
        "totals": summary.engine_totals(source, engine),
        "steps": export_steps(source, engine, bounds.origin_ns, bounds.max_step_rows),
        "requests": export_requests(source, engine, bounds.origin_ns, bounds.last_ns, bounds.max_requests),
    }
