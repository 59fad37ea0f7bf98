"""A folder that `kvtrace export --parquet` filled, read as a trace: files are its tables, its views are computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb

from kvtrace.errors import KvtraceError
from kvtrace.export.place import is_export
from kvtrace.ingest.schema.trace import TRACE_VERSION, create_schema
from kvtrace.queries.text import first_line, inert, quoted
from kvtrace.queries.trace import COMPUTED, JOINS, Trace, spill_directory
from kvtrace.queries.views import views

VIEWS = {view.name: view.sql for view in views() if not view.stored}
"""The SELECTs of a trace's views, in an order in which they can be made."""


class Lake:
    """One run in an exported folder.

    Args:
        folder: What `kvtrace export --parquet` was given.
        run: The run; not needed if there is only one.

    Raises:
        KvtraceError: the folder has no export, or one of another trace version, or the run is unclear or incomplete.
    """

    def __init__(self, folder: Path, run: str | None = None) -> None:
        self.folder = folder
        self.manifest = _manifest(folder, run)
        self.run: str = self.manifest["run_id"]
        version = self.manifest.get("run", {}).get("trace_version")
        if version != str(TRACE_VERSION):
            raise KvtraceError(
                f"{folder} has run {self.run} of trace version {inert(str(version))}; this kvtrace reads version "
                f"{TRACE_VERSION}. Ingest the recording again with this kvtrace and export it again"
            )

    def files(self, table: str) -> Path | None:
        """The folder of a table's files; None if the export has no such table: it is of an earlier kvtrace, say."""
        path = self.folder / f"table={table}" / f"run={self.run}"
        return path if path.is_dir() else None

    def rows(self, table: str) -> int:
        """Return the number of rows of a table."""
        return int(self.manifest["rows"].get(table, 0))


def columns() -> dict[str, dict[str, str]]:
    """The columns of a trace's tables and views, each with DuckDB's name of its type."""
    found: dict[str, dict[str, str]] = {}
    with duckdb.connect() as connection:
        create_schema(connection)
        sql = (
            "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal "
            "ORDER BY table_name, column_index"
        )
        for table, column, type_ in connection.sql(sql).fetchall():
            found.setdefault(table, {})[column] = type_
    return found


class LakeTrace(Trace):
    """A run in an exported folder, answered by DuckDB from the Parquet files. A context manager.

    As in a `Trace`, SQL can read the export and nothing else.

    Args:
        lake: The run.
        memory_limit: DuckDB's, such as "4GB"; by default most of the machine's.
    """

    def __init__(self, lake: Lake, memory_limit: str | None = None) -> None:
        self.path = lake.folder
        self.lake = lake
        self._connection = duckdb.connect(config={"python_enable_replacements": "false", **JOINS})
        try:
            if memory_limit:
                self._connection.execute(f"SET memory_limit = {quoted(memory_limit)}")
            self._fill()
        except duckdb.Error as error:
            self.close()
            raise KvtraceError(f"{lake.folder} cannot be read as an export: {first_line(error)}") from error
        except BaseException:
            self.close()
            raise

    def missing(self, name: str) -> tuple[str, ...]:
        """The tables a canned query needs that have no rows in this run."""
        return tuple(table for table in self._ready(name).needs if not self._has(table))

    def _has(self, table: str) -> bool:
        if table in VIEWS or table == COMPUTED:
            return self._exists(f'SELECT 1 FROM "{table}"')
        return self.lake.rows(table) > 0

    def _fill(self) -> None:
        run = self._connection.execute
        create_schema(self._connection)
        run("SET enable_progress_bar = false")
        run(f"SET temp_directory = {quoted(spill_directory())}")
        for view in reversed(VIEWS):
            run(f"DROP VIEW {view}")
        for table, types in columns().items():
            if table not in VIEWS:
                run(f'ALTER TABLE "{table}" RENAME TO "{table} (empty)"')
                run(f'CREATE VIEW "{table}" AS {self._select(table, types)}')
        for name, view in VIEWS.items():
            run(f"CREATE VIEW {name} AS {view}")
        run(f"SET allowed_directories = [{quoted(f'{self.path.resolve()}/')}]")
        run("SET enable_external_access = false")
        run("SET lock_configuration = true")

    def _select(self, table: str, types: dict[str, str]) -> str:
        files = self.lake.files(table)
        if files is None:
            return f'SELECT 0::BIGINT AS rowid, * FROM "{table} (empty)"'
        read = f"read_parquet({quoted(str(files.resolve() / '**' / '*.parquet'))}, hive_partitioning = false)"
        cast = ", ".join(f'"{name}"::{type_} AS "{name}"' for name, type_ in types.items())
        return f"SELECT rowid, {cast} FROM {read}"


def _manifest(folder: Path, run: str | None) -> dict[str, Any]:
    if not folder.is_dir():
        raise KvtraceError(f"{folder} is not a folder; expected one made by `kvtrace export TRACE --parquet DIR`")
    runs = {path.stem.removeprefix("manifest-"): path for path in sorted(folder.glob("manifest-*.json"))}
    if not runs:
        raise KvtraceError(f"{folder} has no manifest-*.json; `kvtrace export TRACE --parquet {folder}` writes one")
    if run is None and len(runs) > 1:
        raise KvtraceError(f"{folder} has several runs, name one with --run-id: {', '.join(map(inert, runs))}")
    path = runs[next(iter(runs))] if run is None else runs.get(run)
    if path is None:
        raise KvtraceError(f"{folder} has no run {inert(str(run))}; it has {', '.join(map(inert, runs))}")
    if not is_export(path):
        raise KvtraceError(f"{path} is not a manifest of kvtrace")
    manifest: dict[str, Any] = json.loads(path.read_bytes())
    if manifest.get("kvtrace_export") != "parquet" or manifest.get("run_id") != path.stem.removeprefix("manifest-"):
        raise KvtraceError(f"{path} does not belong to a Parquet export of the run it is named after")
    return manifest
