"""The whole way of one Nsight Systems export into a trace."""

from __future__ import annotations

from pathlib import Path

import duckdb

from kvtrace.errors import KvtraceError
from kvtrace.ingest.gpu import align
from kvtrace.ingest.gpu.align import Alignment
from kvtrace.ingest.gpu.attribute import Marked
from kvtrace.ingest.gpu.enums import AlignmentMethod
from kvtrace.ingest.importers.importer import Target
from kvtrace.ingest.importers.nsight.export import PRIVATE, UNREADABLE, Export, damaged, open_export
from kvtrace.ingest.importers.nsight.marks import choose_alignment, read_marks
from kvtrace.ingest.importers.nsight.read import Reading, Taken, import_table
from kvtrace.ingest.importers.nsight.tables import IMPORTS

_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"


def load_export(target: Target, source_id: int, path: Path) -> list[str]:
    """Read an export's tables; returns warnings.

    Raises:
        KvtraceError: The export cannot be read, or changed meanwhile.
    """
    connection = target.connection
    with open_export(path) as export:
        try:
            marks = read_marks(export)
            alignment, readings = choose_alignment(connection, export, marks)
            _insert_source(connection, source_id, export)
            align.insert(connection, source_id, alignment, readings)
            _define_macros(connection, export, alignment)
            _insert_metric_names(connection, export)
            warnings = _import_all(target, source_id, export)
        except (*UNREADABLE, duckdb.ConversionException) as error:
            raise damaged(path, error) from error
        export.check_unchanged()
        target.profiles[source_id] = Marked(marks.ranges, alignment)
        return [*_warnings(export, alignment), *warnings]


def _warnings(export: Export, alignment: Alignment) -> list[str]:
    warnings = [warning] if (warning := export.schema_warning()) else []
    if alignment.method is AlignmentMethod.none:
        warnings.append(
            f"{export.path.name} does not say when it was made (nsys 2021 or older): its times count from its start"
        )
    if export.actual:
        names = ", ".join(f"{actual} as {table}" for table, actual in sorted(export.actual.items()))
        warnings.append(f"{export.path.name}: tables of other names were read: {names}")
    if export.unread:
        warnings.append(
            f"{export.path.name}: {', '.join(sorted(export.unread)[:10])} are views, or tables beside those of nearly "
            "the same name; they were not read"
        )
    if export.unnamed:
        warnings.append(f"{export.path.name}: StringIds lacks {len(export.unnamed)} names; they read #ID")
    return warnings


def _insert_source(connection: duckdb.DuckDBPyConnection, source_id: int, export: Export) -> None:
    facts = export.facts
    row = [source_id, "nsight", export.path.name, facts.get("version"), facts.get("schema"), export.session_start_ns]
    connection.execute("INSERT INTO source VALUES (?, ?, ?, ?, ?, ?)", row)


def _define_macros(connection: duckdb.DuckDBPyConnection, export: Export, alignment: Alignment) -> None:
    """The macros that `tables.py` speaks of. Kernels without a process belong to the only one there is."""
    pid, host = _only_process(export)
    connection.execute(f"CREATE OR REPLACE TEMP MACRO unix_ns(t) AS {alignment.sql('t')}")
    connection.execute(f"CREATE OR REPLACE TEMP MACRO pid_of(g) AS coalesce((g >> 24) & 16777215, {pid})")
    connection.execute(f"CREATE OR REPLACE TEMP MACRO host_of(g) AS coalesce((g >> 48) & 65535, {host})")
    connection.execute("CREATE OR REPLACE TEMP MACRO tid_of(g) AS g & 16777215")


def _only_process(export: Export) -> tuple[str, str]:
    """Pid and host of the only process that calls CUDA, where kernels do not say whose they are; else NULL."""
    kernels = export.columns.get("CUPTI_ACTIVITY_KIND_KERNEL", {})
    if not kernels or "globalpid" in kernels or "globaltid" not in export.columns.get(_CALLS, {}):
        return "NULL", "NULL"
    rows = export.connection.execute(f"SELECT DISTINCT globalTid >> 24 FROM {export.sql(_CALLS)} LIMIT 2").fetchall()
    if len(rows) != 1 or not isinstance(rows[0][0], int):
        return "NULL", "NULL"
    return str(rows[0][0] & 0xFFFFFF), str(rows[0][0] >> 24 & 0xFFFF)


def _insert_metric_names(connection: duckdb.DuckDBPyConnection, export: Export) -> None:
    connection.execute("CREATE OR REPLACE TEMP TABLE source_metric (type_id BIGINT, metric_id BIGINT, metric VARCHAR)")
    if {"typeid", "metricid", "metricname"} <= export.columns.get("TARGET_INFO_GPU_METRICS", {}).keys():
        rows = export.connection.execute(
            f"SELECT typeId, metricId, max(metricName) FROM {export.sql('TARGET_INFO_GPU_METRICS')} GROUP BY 1, 2"
        ).fetchall()
        if rows:
            connection.executemany("INSERT INTO source_metric VALUES (?, ?, ?)", rows)


def _import_all(target: Target, source_id: int, export: Export) -> list[str]:
    connection = target.connection
    wanted = [what for what in IMPORTS if target.options.launch_shapes or not what.optional]
    present = [what for what in wanted if what.table in export.counts]
    total = sum(export.counts[what.table] for what in present)
    done = 0
    taken = Taken()
    rows: list[tuple[int, str, int | None, int | None, str | None]] = []
    for what in present:

        def advance(count: int, label: str = what.target) -> None:
            nonlocal done
            done += count
            target.progress(label, done, total)

        reading = Reading(export, source_id, what, target.kernels, taken)
        read, imported = import_table(connection, reading, advance)
        counted = export.counts[what.table]
        if not what.detail:
            rows.append((source_id, what.table, counted, imported, what.target))
        if read != counted:
            raise KvtraceError(
                f"{export.path}: {read:,} rows of table {what.table} could be read, SQLite counts {counted:,}; the "
                "export is damaged, make it again with nsys export --type sqlite --force-overwrite true"
            )
        if missing := [read.alias for read in what.reads if not _has(export, what.table, read.columns)]:
            taken.warnings += _missing(export, what.table, counted, missing)
    known = {row[1] for row in rows}
    others = sorted(name for name in export.counts if name not in known and not name.startswith("ENUM_"))
    rows += [(source_id, name, export.counts[name], None, None) for name in others]
    rows += [(source_id, name, None, None, None) for name in PRIVATE if name in export.columns]
    if rows:
        connection.executemany("INSERT INTO source_table VALUES (?, ?, ?, ?, ?)", rows)
    return taken.warnings


def _has(export: Export, table: str, names: tuple[str, ...]) -> bool:
    return any(name.lower() in export.columns[table] for name in names)


_NEEDED = {"start", "end", "correlationId", "kernel", "deviceId", "globalTid"}
"""Values without which an answer is missing, not just a detail."""


def _missing(export: Export, table: str, rows: int, aliases: list[str]) -> list[str]:
    lost = sorted(_NEEDED.intersection(aliases))
    if not rows or not lost:
        return []
    return [f"{export.path.name}: table {table} has no column {', '.join(lost)}; what depends on it is NULL"]
