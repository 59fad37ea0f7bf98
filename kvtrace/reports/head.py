"""The head of a report: which run this is, how it was set up, and what its recording lacks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kvtrace.queries import Trace, facts
from kvtrace.queries.facts import Note

Pairs = list[tuple[str, Any]]


@dataclass(frozen=True)
class Head:
    """Facts of a run as names and values, its engines' settings, hooks and losses.

    `title` is its model and when it was recorded; empty if the trace has neither.
    """

    title: str
    facts: Pairs
    engine_names: list[str]
    engines: list[list[Any]]
    notes: list[Note]


def read_head(trace: Trace) -> Head:
    """Read the facts of a trace."""
    engines = [{key: value for key, value in row.items() if key != "pid"} for row in facts.engines(trace)]
    names = [name for name in (engines[0] if engines else {}) if any(row[name] is not None for row in engines)]
    pairs = _facts(trace, engines)
    named = dict(pairs)
    return Head(
        title=", ".join(filter(None, (named.get("Model"), _minutes(named.get("Recorded"))))),
        facts=pairs,
        engine_names=names,
        engines=[[row[name] for name in names] for row in engines],
        notes=facts.notes(trace),
    )


_YEAR_2000_NS = 946_684_800 * 10**9


def _facts(trace: Trace, engines: list[dict[str, Any]]) -> Pairs:
    run = facts.run_facts(trace)
    first_ns, last_ns = facts.whole_span(trace)
    if first_ns is not None and last_ns is not None and first_ns < _YEAR_2000_NS <= last_ns:
        first_ns = last_ns = None  # some engines' times count from 0, others' from 1970
    pairs: Pairs = [
        ("Command", facts.command_line(run)),
        ("Model", _all(engines, "model")),
        ("vLLM", run.get("vllm_version")),
        ("Engines", len(engines) or None),
        ("Block size", _with(_all(engines, "block_size_tokens"), "tokens")),
        ("KV blocks", _with(_all(engines, "blocks"), "an engine")),
        ("Recorded", _moment(run.get("started_ns")) or _moment(first_ns)),
        ("First to last event", None if first_ns is None or last_ns is None else f"{(last_ns - first_ns) / 1e9:.3f} s"),
        ("Exit code", run.get("exit_code")),
        ("Hooks", _hooks(trace)),
        ("Records", _records(trace)),
        ("Made of", run.get("source")),
        ("kvtrace", run.get("kvtrace_version")),
    ]
    return [(name, value) for name, value in pairs if value not in (None, "")]


def _moment(ns: str | int | None) -> str | None:
    """A time in UTC. One that cannot be a time, a damaged manifest's say, is none."""
    try:
        return datetime.fromtimestamp(int(ns or 0) / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if ns else None
    except (ValueError, OverflowError, OSError):
        return None


def _minutes(moment: str | None) -> str | None:
    return f"{moment[: len('2026-01-01 00:00')]} UTC" if moment else None


def _all(engines: list[dict[str, Any]], name: str) -> str | None:
    values = dict.fromkeys(str(engine[name]) for engine in engines if engine.get(name) is not None)
    return ", ".join(values) or None


def _with(value: str | None, unit: str) -> str | None:
    return f"{value} {unit}" if value else None


def _hooks(trace: Trace) -> str | None:
    row = _row(trace, "SELECT count(*) AS n, count(*) FILTER (state <> 'installed') AS gaps FROM hook")
    return f"{row['n'] - row['gaps']} of {row['n']} installed" if row["n"] else None


def _records(trace: Trace) -> str | None:
    sums = "sum(records)::BIGINT AS records, sum(dropped)::BIGINT AS dropped, sum(torn)::BIGINT AS torn"
    row = _row(trace, f"SELECT {sums} FROM stream")
    if row["records"] is None:
        return None
    return f"{row['records']:,} read, {row['dropped'] or 0:,} dropped, {row['torn'] or 0:,} torn"


def _row(trace: Trace, sql: str) -> dict[str, Any]:
    (row,) = trace.sql(sql, "arrow").to_pylist()
    return dict(row)
