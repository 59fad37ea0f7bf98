"""Turns a trace into what a page shows: a table of contents and chunks of columns. `docs/viewer.md` describes both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from kvtrace.queries import facts
from kvtrace.queries.missing import made_of
from kvtrace.viewer import blocks, closeups, gpu, summary
from kvtrace.viewer.chunks import Sink, Writer
from kvtrace.viewer.contract import BLOCK_STATES, FORMAT, REQUEST_STATES, VERSION
from kvtrace.viewer.lane_tables import export_lane_tables, tier_capacity
from kvtrace.viewer.prefixes import export_prefixes, hot_prefixes
from kvtrace.viewer.requests import export_requests
from kvtrace.viewer.source import Source
from kvtrace.viewer.steps import export_shares, export_steps

Document = dict[str, Any]


def contents(runs: list[Document], *, version: str) -> Document:
    """The page's table of contents, for the runs it shows."""
    return {"format": FORMAT, "version": VERSION, "kvtrace_version": version, "runs": runs}


def export_run(path: Path, sink: Sink, name: str, number: int = 0) -> Document:
    """Put the chunks for the trace at `path` into `sink` and return its part of the table of contents.

    Args:
        path: The trace.
        sink: Where chunks go; what it has no room for is counted in the notes.
        name: What the page calls the run.
        number: The run's number in the page, from 0.

    Raises:
        KvtraceError: the file is missing or is not a trace this kvtrace reads.
    """
    with Source(path) as source:
        run = facts.run_facts(source.trace)
        first_ns, last_ns = facts.whole_span(source.trace)
        started = run.get("started_ns") or ""
        told = started.isascii() and started.isdigit()
        origin_ns = int(started) if told else first_ns or 0
        engines = facts.engines(source.trace)
        if not engines and source.has("gpu_activity"):  # a profile alone: an engine of which nothing else is known
            engines = [{"engine_id": 0, "model": None}]
        writers = [Writer(sink, f"r{number}e{index}") for index in range(len(engines))]
        alone = len(engines) == 1
        nodes = hot_prefixes(source)
        began, ended = facts.work_span(source.trace)
        worked = None if began is None or ended is None else (began - origin_ns, ended - origin_ns)
        parts = [
            _export_engine(source, writer, engine, origin_ns, last_ns or origin_ns, worked, nodes, alone=alone)
            for writer, engine in zip(writers, engines, strict=True)
        ]
        return {
            "name": name,
            "origin": "recording start" if told else "first event",
            "origin_ns": str(origin_ns),
            "first_ns": None if first_ns is None else first_ns - origin_ns,
            "last_ns": None if last_ns is None else last_ns - origin_ns,
            "work_ns": worked,
            "states": REQUEST_STATES,
            "block_states": BLOCK_STATES,
            "run": list(run.items()),
            "processes": facts.processes(source.trace),
            "findings": summary.run_findings(source),
            "notes": [*facts.notes(source.trace), *summary.left_out(writers)],
            "engines": parts,
        }


def _export_engine(
    source: Source,
    writer: Writer,
    settings: dict[str, Any],
    origin_ns: int,
    last_ns: int,
    worked: tuple[int, int] | None,
    nodes: pa.Table | None,
    *,
    alone: bool,
) -> dict[str, Any]:
    """Export an engine, the most important first: a page that is too small for everything does without the rest."""
    engine = settings["engine_id"]
    changes = blocks.Changes(source, engine, origin_ns)
    steps = export_steps(source, writer, engine, origin_ns)
    requests = export_requests(source, writer, engine, origin_ns, last_ns)
    overview = blocks.export_overview(writer, changes)
    lane_tables = export_lane_tables(source, writer, engine, origin_ns)
    prefixes = export_prefixes(source, writer, nodes, engine, origin_ns, changes)
    kernels = gpu.export_kernels(source, writer, engine, origin_ns, worked, alone=alone)
    close_ups = closeups.export_close_ups(source, writer, engine, origin_ns)
    shares = export_shares(source, writer, engine, steps)
    detail = blocks.export_detail(writer, changes)
    return {
        "facts": settings,
        "span_ns": _own_span(source, engine, origin_ns),
        "totals": summary.engine_totals(source, engine),
        "steps": steps,
        "shares": shares,
        "requests": requests,
        "blocks": {"total": len(changes), "blocks": changes.blocks, "levels": [*overview, detail]},
        **lane_tables,
        "tier_capacity": tier_capacity(source, engine),
        **prefixes,
        "kernels": kernels,
        "close_ups": close_ups,
    }


def _own_span(source: Source, engine: int, origin_ns: int) -> tuple[int, int] | None:
    """From when to when an engine did anything, if another tool told of it: its clock may be no other engine's."""
    began, ended = facts.work_span(source.trace, engine)
    if made_of(source.trace) is None or began is None or ended is None:
        return None
    return began - origin_ns, ended - origin_ns
