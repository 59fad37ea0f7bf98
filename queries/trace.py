"""A trace opened for reading."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import duckdb

from kvtrace.errors import KvtraceError, needs_analysis
from kvtrace.queries.catalogue import Param, Query, catalogue, find
from kvtrace.queries.plotting import plot_of
from kvtrace.queries.text import inert

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from matplotlib.figure import Figure

TRACE_VERSION = 9
"""The version of the tables that the queries are written for: `kvtrace.ingest.schema.trace.TRACE_VERSION`."""

Format = Literal["pandas", "arrow", "batches"]
"""The form of a result.

"batches" is a `pyarrow.RecordBatchReader`, for results larger than memory; read it to its end before the next query.
"""

BATCH_ROWS = 65_536
LONGEST_VALUE = 100
_READING = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
_DUCKDB_MAGIC = b"DUCK"
_DUCKDB_MAGIC_OFFSET = 8


class Trace:
    """An ingested trace, read-only. A context manager.

    Neither canned nor own SQL can write, read other files or reach the network: DuckDB's external access is off and
    its configuration locked.

    Args:
        path: A file made by `kvtrace ingest`.

    Raises:
        KvtraceError: the file is missing, no DuckDB database, no trace, of another trace version, or locked.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        _check_file(self.path)
        self._connection = _connect(self.path)
        try:
            _check_version(self._connection, self.path)
        except BaseException:
            self.close()
            raise

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
    def query(self, name: str, /, format: Literal["batches"], **params: object) -> pa.RecordBatchReader: ...
    def query(self, name: str, /, format: Format = "pandas", **params: object) -> Any:  # noqa: A002 - reads well
        """The answer of a canned query.

        Args:
            name: The query's name, as in `queries()`.
            format: "pandas", "arrow" (a `pyarrow.Table`) or "batches".
            params: The query's parameters; text is cast to the declared type.

        Raises:
            KvtraceError: no such query or parameter, or a value of the wrong type.
        """
        query = find(name)
        return self._result(query.sql(self._bind(query, params)), format)

    @overload
    def sql(self, text: str, format: Literal["pandas"] = "pandas") -> pd.DataFrame: ...
    @overload
    def sql(self, text: str, format: Literal["arrow"]) -> pa.Table: ...
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
            format: "pandas", "arrow" (a `pyarrow.Table`) or "batches".
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
            query = find(name)
            draw = plot_of(query.name)
            return draw(self._result(query.sql(self._bind(query, params)), "pandas"))

    def missing(self, name: str) -> tuple[str, ...]:
        """The tables a canned query needs that have no rows in this trace.

        Raises:
            KvtraceError: no such query, or the trace lacks a table or view altogether.
        """
        return tuple(table for table in find(name).needs if not self._exists(f'SELECT 1 FROM "{table}"'))

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
        return text

    def _result(self, sql: str, format_: Format, batch_rows: int = BATCH_ROWS) -> Any:
        if format_ not in ("pandas", "arrow", "batches"):
            raise KvtraceError(f"format is {format_!r}; expected pandas, arrow or batches")
        with needs_analysis():
            try:
                relation = self._connection.sql(sql)
                if format_ == "pandas":
                    return relation.df()
                return relation.to_arrow_table() if format_ == "arrow" else relation.to_arrow_reader(batch_rows)
            except duckdb.Error as error:
                raise _sql_error(error) from error


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(_DUCKDB_MAGIC_OFFSET + len(_DUCKDB_MAGIC))
    except FileNotFoundError as error:
        raise KvtraceError(f"{path} does not exist; `kvtrace ingest RUN` makes a trace of a recording") from error
    except IsADirectoryError as error:
        raise KvtraceError(f"{path} is a directory; expected a trace. To make one: kvtrace ingest {path}") from error
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
    }
    try:
        connection = duckdb.connect(str(path), read_only=True, config=config)
        # Handles of one file in one process share its settings, and the first one locks them.
        if not connection.sql("SELECT current_setting('lock_configuration')").fetchall()[0][0]:
            # From `python -c` and notebooks DuckDB would draw a progress bar onto stdout, amid the answer.
            connection.execute("SET enable_progress_bar = false")
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
            f"DuckDB {duckdb.__version__} cannot open {path}: {_first_line(error)}. A damaged trace can be made again "
            "with `kvtrace ingest`; one of a newer DuckDB needs that version"
        ) from error


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


_NESTED_WITH = re.compile(r"\(\s*with\b", re.IGNORECASE)
_MOST_NESTED = 12
"""DuckDB 2.0 takes three times as long, and as much memory, for each further one in SQL that turns out to be wrong."""

_LONGEST_LINE, _MOST_LINES = 400, 20
"""Of what DuckDB says about a SELECT, which may repeat all of it."""


def _sql_error(error: duckdb.Error) -> KvtraceError:
    lines = [inert(line)[:_LONGEST_LINE] for line in str(error).splitlines() if line.strip()][:_MOST_LINES]
    advice = "; a trace's SQL can read nothing but the trace" if isinstance(error, duckdb.PermissionException) else ""
    return KvtraceError("\n".join(lines) + advice)


def _first_line(error: duckdb.Error) -> str:
    return inert(str(error).strip().splitlines()[0]).rstrip(".")
