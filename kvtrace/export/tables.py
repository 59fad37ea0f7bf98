"""The tables of a trace, and what is said of a trace in every manifest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.queries import Trace

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Source:
    """A table or view of a trace."""

    name: str

    @property
    def sql(self) -> str:
        """All of it."""
        return 'FROM "' + self.name.replace('"', '""') + '"'


def sources(trace: Trace, *, views: bool) -> list[Source]:
    """The tables of a trace by name; with `views` its views too."""
    sql = "SELECT table_name AS name FROM duckdb_tables() WHERE NOT internal"
    if views:
        sql += " UNION ALL SELECT view_name FROM duckdb_views() WHERE NOT internal"
    return [Source(name) for name in trace.sql(f"{sql} ORDER BY name", "arrow")["name"].to_pylist()]


def run_facts(trace: Trace) -> dict[str, str]:
    """Table `run`."""
    rows = trace.sql("FROM run", "arrow").to_pylist()
    return {row["key"]: row["value"] for row in rows}


def facts(trace: Trace) -> dict[str, Any]:
    """What a manifest says of the trace."""
    return {"trace": trace.path.name, "run": run_facts(trace)}


def run_id(trace: Trace, given: str | None) -> str:
    """What tells a run from others: its start and process, or the trace's name where nothing was recorded.

    Raises:
        KvtraceError: the name given cannot be part of a file name.
    """
    if given is not None:
        if not _RUN_ID.fullmatch(given):
            raise KvtraceError(f"--run-id {given!r}: expected letters, digits, '.', '_' and '-', at most 100")
        return given
    run = run_facts(trace)
    if (started := run.get("started_ns") or "").isdigit():
        moment = datetime.fromtimestamp(int(started) / 1e9, UTC)
        return re.sub(r"[^A-Za-z0-9-]", "_", f"{moment:%Y%m%dT%H%M%SZ}-{run.get('pid') or 0}")
    return re.sub(r"[^A-Za-z0-9._-]", "_", trace.path.stem).lstrip("._-")[:100] or "run"
