"""A trace opened for reading."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, get_args, overload

import duckdb

from kvtrace.errors import KvtraceError, name_below, needs_analysis, needs_extra
from kvtrace.queries.catalogue import Param, Query, catalogue, find
from kvtrace.queries.plotting import plot_of
from kvtrace.queries.text import first_line, inert
from kvtrace.queries.views import views

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from matplotlib.figure import Figure

TRACE_NAME = "trace.duckdb"
"""The trace in a run directory, unless another file was named."""

TRACE_VERSION = 12
"""The version of the tables that the queries are written for: `kvtrace.ingest.schema.trace.TRACE_VERSION`."""

Format = Literal["pandas", "polars", "arrow", "batches", "relation"]
"""The form of a result.

"polars" needs polars installed. "batches" is a `pyarrow.RecordBatchReader`, for results larger than memory; read it to
its end before the next query. "relation" is DuckDB's own, computed when it is read; it can be filtered, joined and
aggregated while the trace is open.
"""

COMPUTED = "reuse_size"
"""The table that is computed when a query needs it: SQL cannot, and ingest would take half as long again."""

JOINS: dict[str, str | bool | int | float | list[str]] = {"asof_loop_join_threshold": 0}
"""Settings of connections that run queries and views. Where DuckDB expects few rows it compares every row of an ASOF
join with every other, and behind views it expects a thousand times too few: who held 20,000 blocks with 200,000 pins
took 8.7 s so, and takes 0.3 s by sorting."""

BATCH_ROWS = 65_536
LONGEST_VALUE = 100
_COUNTED = ("engines", "requests", "steps")
_READING = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
_DUCKDB_MAGIC = b"DUCK"
_DUCKDB_MAGIC_OFFSET = 8
_CONNECTING = threading.Lock()


class Trace:
    """An ingested trace, read-only. A context manager.

    Neither canned nor own SQL can write, read other files or reach the network: DuckDB's external access is off and
    its configuration locked.

    Args:
        path: A file made by `kvtrace ingest`, or the run directory that it lies in.

    Raises:
        KvtraceError: the file is missing, no DuckDB database, no trace, of another trace version, or locked.
    """

    _sized = False

    def __init__(self, path: str | Path) -> None:
        self.path = trace_file(Path(path))
        _check_file(self.path)
        self._connection = _connect(self.path)
        try:
            _check_version(self._connection, self.path)
            _add_views(self._connection)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        try:
            counts = self._connection.sql("""
                SELECT (SELECT count(*) FROM engine), (SELECT count(*) FROM request),
                    (SELECT count(*) FROM step_schedule)
            """).fetchall()[0]
        except duckdb.Error:  # it is closed
            return f"<Trace {self.path}, closed>"
        holds = ", ".join(f"{number:,} {what}" for number, what in zip(counts, _COUNTED, strict=True))
        return f"<Trace {self.path}: {holds}; .queries() lists questions, .sql('SHOW TABLES') tables>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Closing twice is fine."""
        self._connection.close()

    def queries(self) -> Mapping[str, Query]:
        """The canned queries by name."""
        return catalogue()

    @overload
    def query(self, name: str, /, format: Literal["pandas"] = "pandas", **params: object) -> pd.DataFrame: ...
    @overload
    def query(self, name: str, /, format: Literal["arrow"], **params: object) -> pa.Table: ...
    @overload
    def query(self, name: str, /, format: Literal["polars"], **params: object) -> pl.DataFrame: ...
    @overload
    def query(self, name: str, /, format: Literal["batches"], **params: object) -> pa.RecordBatchReader: ...
    @overload
    def query(self, name: str, /, format: Literal["relation"], **params: object) -> duckdb.DuckDBPyRelation: ...
    def query(self, name: str, /, format: Format = "pandas", **params: object) -> Any:  # noqa: A002 - reads well
        """The answer of a canned query.

        Args:
            name: The query's name, as in `queries()`.
            format: "pandas", "polars", "arrow" (a `pyarrow.Table`), "batches" or "relation" (see `Format`).
            params: The query's parameters; text is cast to the declared type.

        Raises:
            KvtraceError: no such query or parameter, or a value of the wrong type.
        """
        return self._canned(name, format, params)

    @overload
    def sql(self, text: str, format: Literal["pandas"] = "pandas") -> pd.DataFrame: ...
    @overload
    def sql(self, text: str, format: Literal["arrow"]) -> pa.Table: ...
    @overload
    def sql(self, text: str, format: Literal["polars"]) -> pl.DataFrame: ...
    @overload
    def sql(self, text: str, format: Literal["relation"]) -> duckdb.DuckDBPyRelation: ...
    @overload
    def sql(
        self,
        text: str,
        format: Literal["batches"],
        *,
        batch_rows: int = ...,
    ) -> pa.RecordBatchReader: ...
    def sql(self, text: str, format: Format = "pandas", *, batch_rows: int = BATCH_ROWS) -> Any:  # noqa: A002
        """The answer of one SELECT (or DESCRIBE, SHOW, SUMMARIZE, EXPLAIN) of your own.

        Args:
            text: The SELECT.
            format: "pandas", "polars", "arrow" (a `pyarrow.Table`), "batches" or "relation" (see `Format`).
            batch_rows: Rows of a batch.

        Raises:
            KvtraceError: the SQL is wrong, is not one statement, or would do more than read the trace.
        """
        if len(_NESTED_WITH.findall(text)) > _MOST_NESTED:
            raise KvtraceError(
                f"the SQL has more than {_MOST_NESTED} WITH in parentheses; DuckDB's parser may use all memory "
                "on them. Put them side by side: WITH a AS (...), b AS (...) SELECT ..."
            )
        try:
            statements = self._connection.extract_statements(text)
        except TypeError as error:  # a command line can hold bytes that are no text
            raise KvtraceError("the SQL is not UTF-8 text") from error
        except duckdb.Error as error:
            raise _sql_error(error) from error
        if len(statements) != 1:
            raise KvtraceError(f"expected one SQL statement, found {len(statements)}")
        if statements[0].type not in _READING:
            raise KvtraceError(
                f"{statements[0].type.name} is not allowed: a trace is opened read-only. "
                "Use SELECT, DESCRIBE, SHOW, SUMMARIZE or EXPLAIN; `-o FILE` writes a result"
            )
        return self._result(statements[0].query, format, batch_rows)

    def plot(self, name: str, /, **params: object) -> Figure:
        """The plot of a canned query's answer, as a matplotlib figure; `kvtrace.queries.plotting.save` writes it.

        Args:
            name: The query's name; `kvtrace.queries.plotting.plotted()` lists those that have a plot.
            params: The query's parameters, as for `query`.

        Raises:
            KvtraceError: no such query, parameter or value, or the query has no plot.
        """
        with needs_analysis():
            draw = plot_of(find(name).name)
            return draw(self._canned(name, "pandas", params))

    @cached_property
    def origin_ns(self) -> int:
        """UNIX time of the recording's start, or else of the first request or step; 0 where neither has a time."""
        told = self._connection.sql("SELECT value FROM run WHERE key = 'started_ns'").fetchall()
        if told and str(told[0][0]).isascii() and str(told[0][0]).isdigit():
            return int(told[0][0])
        first = self._connection.sql("""
            SELECT least((SELECT min(arrival_ns) FROM request), (SELECT min(start_ns) FROM step_schedule))
        """).fetchall()
        return int(first[0][0] or 0)

    def missing(self, name: str) -> tuple[str, ...]:
        """The tables a canned query needs that have no rows in this trace.

        Raises:
            KvtraceError: no such query, or the trace lacks a table or view altogether.
        """
        with _asked_of_earlier():
            return tuple(table for table in self._ready(name).needs if not self._exists(f'SELECT 1 FROM "{table}"'))

    def _canned(self, name: str, format_: Format, params: Mapping[str, object]) -> Any:
        with _asked_of_earlier():
            query = self._ready(name)
            return self._result(query.sql(self._bind(query, params)), format_)

    def _ready(self, name: str) -> Query:
        """A canned query, once what it needs is there: ingest leaves `COMPUTED` to the first that asks."""
        query = find(name)
        if COMPUTED in query.needs and not self._sized:
            if not self._exists(f"SELECT 1 FROM {COMPUTED}"):
                self._compute_sizes()
            self._sized = True
        return query

    def _compute_sizes(self) -> None:
        with needs_analysis():
            from kvtrace.queries.reuse.pool_sizes import PoolSize, pool_sizes

            rows = pool_sizes(self)
        # A temporary table comes before the file's own of that name.
        columns = ", ".join(PoolSize._fields)
        self._connection.execute(f"CREATE TEMP TABLE {COMPUTED} AS SELECT {columns} FROM main.{COMPUTED} LIMIT 0")
        for row in rows:
            self._connection.execute(f"INSERT INTO temp.{COMPUTED} VALUES (?, ?, ?, ?, ?, ?)", list(row))

    def _exists(self, select: str) -> bool:
        try:
            return bool(self._connection.sql(f"SELECT EXISTS ({select})").fetchall()[0][0])
        except duckdb.Error as error:
            raise _sql_error(error) from error

    def _bind(self, query: Query, given: Mapping[str, object]) -> dict[str, str | None]:
        declared = {param.name: param for param in query.params}
        if unknown := [name for name in given if name not in declared]:
            valid = ", ".join(declared) or "none"
            raise KvtraceError(f"query {query.name} has no parameter {', '.join(unknown)}; it takes: {valid}")
        if absent := [param.name for param in query.params if param.required and param.name not in given]:
            raise KvtraceError(f"query {query.name} needs a value for {', '.join(absent)}: --param {absent[0]}=VALUE")
        return {name: self._cast(param, given.get(name, param.default)) for name, param in declared.items()}

    def _cast(self, param: Param, value: object) -> str | None:
        """Check a value against its declared type; DuckDB's text of it."""
        cast = f"SELECT CAST(CAST($value AS {param.type}) AS VARCHAR)"
        try:
            text: str | None = self._connection.sql(cast, params={"value": value}).fetchall()[0][0]
        except (duckdb.Error, TypeError) as error:  # TypeError: bytes of a command line that are no text
            raise KvtraceError(
                f"parameter {param.name}: {value!r:.{LONGEST_VALUE}} is not of type {param.type} ({param.meaning})"
            ) from error
        if param.choices and text is not None and text not in param.choices:
            expected = ", ".join(param.choices)
            raise KvtraceError(f"parameter {param.name}: {text!r:.{LONGEST_VALUE}} is not one of: {expected}")
        return text

    def _result(self, sql: str, format_: Format, batch_rows: int = BATCH_ROWS) -> Any:
        if format_ not in get_args(Format):
            raise KvtraceError(f"format is {format_!r}; expected one of {', '.join(get_args(Format))}")
        with needs_analysis(), needs_extra("polars", 'format="polars"'):
            try:
                return _as_format(self._connection.sql(sql), format_, batch_rows)
            except duckdb.Error as error:
                raise _sql_error(error) from error


def _as_format(relation: duckdb.DuckDBPyRelation, format_: Format, batch_rows: int) -> Any:
    match format_:
        case "pandas":
            return relation.df()
        case "polars":
            return relation.pl()
        case "arrow":
            return relation.to_arrow_table()
        case "batches":
            return relation.to_arrow_reader(batch_rows)
        case "relation":
            return relation


def trace_file(path: Path) -> Path:
    """The trace that a path means: of a run directory the one in it, if it was ingested."""
    inside = path / TRACE_NAME
    return inside if inside.is_file() else path


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(_DUCKDB_MAGIC_OFFSET + len(_DUCKDB_MAGIC))
    except FileNotFoundError as error:
        raise KvtraceError(f"{path} does not exist; `kvtrace ingest RUN` makes a trace of a recording") from error
    except IsADirectoryError as error:
        advice = name_below(path, TRACE_NAME) or f"; to make one: kvtrace ingest {path}"
        raise KvtraceError(f"{path} is a directory without a trace{advice}") from error
    except OSError as error:
        raise KvtraceError(f"cannot read {path}: {error.strerror}") from error
    if head[_DUCKDB_MAGIC_OFFSET:] != _DUCKDB_MAGIC:
        raise KvtraceError(f"{path} is not a DuckDB database; expected a trace made by `kvtrace ingest`")


def _connect(path: Path) -> duckdb.DuckDBPyConnection:
    config: dict[str, str | bool | int | float | list[str]] = {
        "enable_external_access": "false",
        "autoinstall_known_extensions": "false",  # a view in a stranger's trace may name a function of any extension
        "autoload_known_extensions": "false",
        "allow_persistent_secrets": "false",
        "python_enable_replacements": "false",
        "temp_directory": spill_directory(),
        **JOINS,
    }
    try:
        with _CONNECTING:  # handles of one file in one process share its settings, and the first one locks them
            connection = duckdb.connect(str(path), read_only=True, config=config)
            if not _setting(connection, "lock_configuration"):
                hide_progress(connection)
                connection.execute("SET lock_configuration = true")
            return connection
    except duckdb.ConnectionException as error:
        raise KvtraceError(f"{path} is open for writing in this process; close that connection first") from error
    except duckdb.Error as error:
        if "set lock" in str(error):
            raise KvtraceError(
                f"{path} is being written by another process ({_lock_holder(error)}); try again when it has ended"
            ) from error
        raise KvtraceError(
            f"DuckDB {duckdb.__version__} cannot open {path}: {first_line(error).rstrip('.')}. A damaged trace can be "
            "made again with `kvtrace ingest`; one of a newer DuckDB needs that version"
        ) from error


def hide_progress(connection: duckdb.DuckDBPyConnection) -> None:
    """Draw no progress bar: from `python -c` and notebooks it would stand on stdout, amid the answer.

    In a notebook without ipywidgets DuckDB draws none, and refuses to have that set.
    """
    if _setting(connection, "enable_progress_bar"):
        connection.execute("SET enable_progress_bar = false")


def _setting(connection: duckdb.DuckDBPyConnection, name: str) -> object:
    return connection.sql(f"SELECT current_setting('{name}')").fetchall()[0][0]


@cache
def spill_directory() -> str:
    """Return the directory for DuckDB's spilled data: beside the trace it could collide with another reader's."""
    directory = tempfile.mkdtemp(prefix="kvtrace-")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory


def _lock_holder(error: duckdb.Error) -> str:
    text = str(error)
    return text[text.find("PID") :].split(")", maxsplit=1)[0] if "PID" in text else "unknown"


def _check_version(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    try:
        facts = dict(connection.sql("SELECT key, value FROM run").fetchall())
    except duckdb.Error as error:
        raise KvtraceError(f"{path} is a DuckDB database, but not a kvtrace trace: it has no table `run`") from error
    found = facts.get("trace_version")
    if found is None:
        raise KvtraceError(f"{path} is not a kvtrace trace: its table `run` has no trace_version")
    if found != str(TRACE_VERSION):
        maker = facts.get("kvtrace_version") or "unknown"
        raise KvtraceError(
            f"{path} has trace version {inert(found)} (made by kvtrace {inert(maker)}); this kvtrace reads version "
            f"{TRACE_VERSION}. Ingest the recording again with this kvtrace, or use that one"
        )


def _add_views(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the views that an earlier kvtrace's trace lacks, for this connection: they come without a new version."""
    made = {name for (name,) in connection.sql("SELECT view_name FROM duckdb_views()").fetchall()}
    for view in views():
        if not view.stored and view.name not in made:
            try:
                connection.execute(f"CREATE TEMP VIEW {view.name} AS {view.sql}")
            except (duckdb.CatalogException, duckdb.BinderException):
                continue  # the trace lacks what it is made of


@contextmanager
def _asked_of_earlier() -> Iterator[None]:
    """Tell that a canned query fails on a trace for the trace's age: tables and columns come without a new version."""
    try:
        yield
    except KvtraceError as error:
        if not isinstance(error.__cause__, duckdb.CatalogException | duckdb.BinderException):
            raise
        lacks = str(error).splitlines()[0]
        raise KvtraceError(
            f"an earlier kvtrace made this trace, and the query needs more: ingest it again ({lacks})"
        ) from error


_NESTED_WITH = re.compile(r"\(\s*with\b", re.IGNORECASE)
_MOST_NESTED = 12
"""DuckDB 2.0 takes three times as long, and as much memory, for each further one in SQL that turns out to be wrong."""

_LONGEST_LINE, _MOST_LINES = 400, 20
"""Of what DuckDB says about a SELECT, which may repeat all of it."""


def _sql_error(error: duckdb.Error) -> KvtraceError:
    lines = [inert(line)[:_LONGEST_LINE] for line in str(error).splitlines() if line.strip()][:_MOST_LINES]
    advice = "; a trace's SQL can read nothing but the trace" if isinstance(error, duckdb.PermissionException) else ""
    return KvtraceError("\n".join(lines) + advice)
