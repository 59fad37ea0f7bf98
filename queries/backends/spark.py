"""The canned queries on Apache Spark: each table's files become a view there, each query is translated and sent.

What Spark answers is cast to the types that DuckDB has for the same columns, so both engines give the same table.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from kvtrace.errors import KvtraceError
from kvtrace.queries.backends.lake import VIEWS, Lake, LakeTrace, columns
from kvtrace.queries.backends.translate import steps_to_spark, tables_of
from kvtrace.queries.text import first_line
from kvtrace.queries.trace import BATCH_ROWS, Format, spill_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TYPES = {
    "BIGINT": "BIGINT",
    "BIGINT[]": "ARRAY<BIGINT>",
    "BOOLEAN": "BOOLEAN",
    "DOUBLE": "DOUBLE",
    "FLOAT": "FLOAT",
    "INTEGER": "INT",
    "SMALLINT": "SMALLINT",
    "TINYINT": "TINYINT",
    "UBIGINT": "DECIMAL(20,0)",
    "UINTEGER": "BIGINT",
    "USMALLINT": "INT",
    "UTINYINT": "SMALLINT",
    "VARCHAR": "STRING",
}
"""Spark's types for Parquet's; it has no unsigned ones. Enums are text."""

_SETTINGS = {
    "spark.sql.ansi.enabled": "true",  # a sum that does not fit is an error, not another number
    "spark.sql.cteRecursionLevelLimit": "-1",
    "spark.sql.session.timeZone": "UTC",
}


def spark_session(master: str | None = None) -> SparkSession:
    """The session of this process: of the cluster that is named, or else of Spark's own configuration.

    Args:
        master: Such as `spark://HOST:7077`, `yarn` or `local-cluster[2,1,1024]`.

    Raises:
        KvtraceError: PySpark or Java is not installed, or there is no such cluster.
    """
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as missing:
        raise KvtraceError(
            f"{missing.name} is not installed; --engine spark needs it: pip install 'kvtrace[spark]'"
        ) from missing
    logging.getLogger("SQLQueryContextLogger").disabled = True  # it writes every error to stderr, stack and all
    builder = SparkSession.builder.appName("kvtrace").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.log.level", "ERROR").config("spark.sql.warehouse.dir", spill_directory())
    if master is not None:
        builder = builder.master(master)
    try:
        session: SparkSession = builder.getOrCreate()
    except (PySparkException, OSError) as error:
        advice = " (Spark needs Java 17 or later)" if "JAVA" in str(error) else ""
        raise KvtraceError(f"Spark does not start: {first_line(error)}{advice}") from error
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    return session


class SparkTrace(LakeTrace):
    """A run in an exported folder, answered by Spark. The cluster's workers must see the folder under the same path.

    Args:
        lake: The run.
        session: From `spark_session`.
    """

    _filled_by: ClassVar[SparkTrace | None] = None
    """Trace that the session's views are of: a process has one session, and a session one view of a name."""

    def __init__(self, lake: Lake, session: SparkSession) -> None:
        super().__init__(lake)
        self._session = session
        self._columns = columns()
        self._made: set[str] = set()
        self._first: dict[str, list[DataFrame]] = {}

    def close(self) -> None:
        """Forget the run. The session stays for the next one."""
        if SparkTrace._filled_by is self:
            SparkTrace._filled_by = None
        super().close()

    def _exists(self, select: str) -> bool:
        return self._run(f"{select} LIMIT 1").num_rows > 0

    def _result(self, sql: str, format_: Format, batch_rows: int = BATCH_ROWS) -> Any:
        described = self._connection.sql(sql)
        enums = {
            name: _members(type_)
            for name, type_ in zip(described.columns, described.types, strict=True)
            if type_.id == "enum"
        }
        wanted = described.limit(0).to_arrow_table().schema
        table = _cast(self._run(sql, enums), wanted)
        if format_ == "batches":
            return table.to_reader(batch_rows)
        return table if format_ == "arrow" else table.to_pandas()

    def _run(self, sql: str, enums: dict[str, tuple[str, ...]] | None = None) -> pa.Table:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        first, last = steps_to_spark(sql, enums)
        kept = []
        try:
            self._make_views(tables_of(sql))
            kept += [frame.cache() for frame in self._first_of(tables_of(sql))]
            for name, step in first:
                kept.append(self._step(name, step).cache())
            answer: pa.Table = self._session.sql(last).toArrow()
            return answer
        except (PySparkException, Py4JError) as error:
            raise KvtraceError(f"Spark: {_reason(error)}") from error
        finally:
            for frame in kept:
                frame.unpersist()

    def _step(self, name: str, sql: str) -> DataFrame:
        frame = self._session.sql(sql)
        frame.createOrReplaceTempView(f"`{name}`")
        return frame

    def _first_of(self, names: set[str]) -> list[DataFrame]:
        """Return what the views among these names compute first, and the views that they read."""
        for view in reversed(VIEWS):
            if view in names:
                names = names | tables_of(VIEWS[view])
        return [frame for view in VIEWS if view in names for frame in self._first.get(view, ())]

    def _make_views(self, names: set[str]) -> None:
        """Give the session these tables and views of the run, and what the views read."""
        if SparkTrace._filled_by is not self:
            SparkTrace._filled_by = self
            self._made, self._first = set(), {}
        for name in sorted((names - self._made) & self._columns.keys()):
            self._made.add(name)
            if name in VIEWS:
                self._make_views(tables_of(VIEWS[name]))
                first, last = steps_to_spark(VIEWS[name])
                self._first[name] = [self._step(step, sql) for step, sql in first]
                self._session.sql(f"CREATE OR REPLACE TEMPORARY VIEW `{name}` AS {last}")
            else:
                types = {"rowid": "BIGINT", **self._columns[name]}
                self._make_table(name, {column: _TYPES.get(type_, "STRING") for column, type_ in types.items()})

    def _make_table(self, name: str, types: dict[str, str]) -> None:
        files = self.lake.files(name)
        if files is None or not self.lake.rows(name):
            # Spark sees that it is empty and leaves out what would be computed from it.
            nothing = ", ".join(f"CAST(NULL AS {type_}) AS `{column}`" for column, type_ in types.items())
            frame = self._session.sql(f"SELECT {nothing} WHERE false")
        else:
            schema = ", ".join(f"`{column}` {type_}" for column, type_ in types.items())
            reader = self._session.read.schema(schema).option("recursiveFileLookup", "true")
            frame = reader.parquet(str(files.resolve()))
        frame.createOrReplaceTempView(f"`{name}`")


def _members(enum: Any) -> tuple[str, ...]:
    return tuple(enum.children[0][1])


def _cast(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """A result with DuckDB's types; enums stay text."""
    types = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in wanted]
    return table.cast(pa.schema(list(zip(wanted.names, types, strict=True))))


def _reason(error: Exception) -> str:
    """Return the first cause: an error that came from a worker through the JVM names only the last call."""
    cause = getattr(error, "java_exception", None)
    if cause is None:
        return first_line(error)
    while (deeper := cause.getCause()) is not None:
        cause = deeper
    return first_line(cause.toString())
