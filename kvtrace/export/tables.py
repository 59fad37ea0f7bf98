"""The tables of a trace, and the facts of it that every manifest holds."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.queries import Trace
from kvtrace.queries.facts import run_facts

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def tables(trace: Trace, *, views: bool) -> list[str]:
    """Names of a trace's tables; with `views` those of its views too.

    Raises:
        KvtraceError: a name that kvtrace gives none: it would become that of a file.
    """
    sql = "SELECT table_name AS name FROM duckdb_tables() WHERE NOT internal"
    if views:
        sql += " UNION ALL SELECT view_name FROM duckdb_views() WHERE NOT internal"
    names = [row["name"] for row in trace.sql(f"{sql} ORDER BY name", "arrow").to_pylist()]
    if strange := next((name for name in names if not _TABLE.fullmatch(name)), None):
        raise KvtraceError(f"{trace.path} has a table {strange!r:.80}, which kvtrace did not make; it is not exported")
    return names


def select(name: str) -> str:
    """Return the SQL that reads a whole table."""
    return 'FROM "' + name.replace('"', '""') + '"'


def facts(trace: Trace) -> dict[str, Any]:
    """Facts of the trace for a manifest."""
    return {"trace": trace.path.name, "run": run_facts(trace)}


def run_id(trace: Trace, given: str | None) -> str:
    """The name that tells a run from others: its start and process, or the trace's name where nothing was recorded.

    Raises:
        KvtraceError: the name given cannot be part of a file name.
    """
    if given is not None:
        if not _RUN_ID.fullmatch(given):
            raise KvtraceError(f"--run-id {given!r}: expected letters, digits, '.', '_' and '-', at most 100")
        return given
    run = run_facts(trace)
    with contextlib.suppress(ValueError, OverflowError, OSError):  # a damaged manifest's start may be no time
        moment = datetime.fromtimestamp(int(run.get("started_ns") or "") / 1e9, UTC)
        return re.sub(r"[^A-Za-z0-9-]", "_", f"{moment:%Y%m%dT%H%M%SZ}-{run.get('pid') or 0}")[:100]
    return re.sub(r"[^A-Za-z0-9._-]", "_", trace.path.stem).lstrip("._-")[:100] or "run"
