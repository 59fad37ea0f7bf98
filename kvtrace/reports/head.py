"""What stands at the top of a report: which run this is, how it was set up, and what its recording lacks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvtrace.viewer import summary
from kvtrace.viewer.source import Source

Pairs = list[tuple[str, Any]]


@dataclass(frozen=True)
class Head:
    """Facts of a run as names and values, its engines' settings, hooks and losses."""

    facts: Pairs
    engine_names: list[str]
    engines: list[list[Any]]
    notes: list[summary.Note]


def read_head(path: Path) -> Head:
    """Read the facts of the trace at `path`.

    Raises:
        KvtraceError: the file is missing or is not a trace this kvtrace reads.
    """
    with Source(path) as source:
        run = dict(summary.run_facts(source))
        engines = [{key: value for key, value in row.items() if key != "pid"} for row in summary.engines(source)]
        names = [name for name in (engines[0] if engines else {}) if any(row[name] is not None for row in engines)]
        return Head(
            facts=_facts(source, run, engines),
            engine_names=names,
            engines=[[row[name] for name in names] for row in engines],
            notes=summary.notes(source, list(run.items())),
        )


def _facts(source: Source, run: dict[str, str | None], engines: list[dict[str, Any]]) -> Pairs:
    (first_ns, last_ns), _ = summary.spans(source)
    began = _moment(run.get("started_ns")) or _moment(first_ns)
    seconds = None if first_ns is None or last_ns is None else f"{(last_ns - first_ns) / 1e9:.3f} s"
    facts: Pairs = [
        ("Command", command_line(run.get("command"))),
        ("Model", _all(engines, "model")),
        ("vLLM", run.get("vllm_version")),
        ("Engines", len(engines) or None),
        ("Block size", _with(_all(engines, "block_size_tokens"), "tokens")),
        ("KV blocks", _with(_all(engines, "blocks"), "an engine")),
        ("Recorded", began),
        ("First to last event", seconds),
        ("Exit code", run.get("exit_code")),
        ("Hooks", _hooks(source)),
        ("Records", _records(source)),
        ("Made of", run.get("source")),
        ("kvtrace", run.get("kvtrace_version")),
    ]
    return [(name, value) for name, value in facts if value not in (None, "")]


def _moment(ns: str | int | None) -> str | None:
    """A time in UTC. One that cannot be a time, a damaged manifest's say, is none."""
    try:
        return datetime.fromtimestamp(int(ns or 0) / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if ns else None
    except (ValueError, OverflowError, OSError):
        return None


def command_line(text: str | None) -> str | None:
    """The command line, as words; the manifest keeps it as a JSON list."""
    try:
        words = json.loads(text or "null")
    except ValueError:
        return text
    return " ".join(map(str, words)) if isinstance(words, list) else text


def _all(engines: list[dict[str, Any]], name: str) -> str | None:
    values = dict.fromkeys(str(engine[name]) for engine in engines if engine.get(name) is not None)
    return ", ".join(values) or None


def _with(value: str | None, unit: str) -> str | None:
    return f"{value} {unit}" if value else None


def _hooks(source: Source) -> str | None:
    row = source.row("SELECT count(*) AS n, count(*) FILTER (state <> 'installed') AS gaps FROM hook")
    return f"{row['n'] - row['gaps']} of {row['n']} installed" if row["n"] else None


def _records(source: Source) -> str | None:
    row = source.row("""
        SELECT sum(records)::BIGINT AS records, sum(dropped)::BIGINT AS dropped, sum(torn)::BIGINT AS torn FROM stream
    """)
    if row["records"] is None:
        return None
    return f"{row['records']:,} read, {row['dropped'] or 0:,} dropped, {row['torn'] or 0:,} torn"
