"""The importer of what clients saw: `client.jsonl` of a run directory to table `client_request`, an object a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from kvtrace.errors import KvtraceError, Tell
from kvtrace.format import layout
from kvtrace.format.jsonlines import read_json_lines
from kvtrace.ingest.schema.client import CLIENT_REQUEST

_ARROW: dict[str, Any] = {"INTEGER": pa.int32(), "BIGINT": pa.int64(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_()}
_TYPES: dict[str, Any] = {
    field.name: _ARROW.get(field.sql_type, pa.list_(pa.int64()) if field.sql_type == "BIGINT[]" else pa.string())
    for field in CLIENT_REQUEST.fields
    if field.name != "request"
}
_REQUIRED = ("request_id", "send_ns")
# A server names a completion's id to the client and adds the prompt's index to it.
_INSERT = """
INSERT INTO client_request BY NAME
WITH known AS (
    SELECT external_id, arg_min(request, (p.recording IS DISTINCT FROM $recording, request)) AS request
    FROM request LEFT JOIN process p ON p.process_id = request.engine_id GROUP BY external_id
)
SELECT coalesce(exact.request, indexed.request) AS request, seen.* REPLACE (
    due_ns + {add} AS due_ns, send_ns + {add} AS send_ns, first_token_ns + {add} AS first_token_ns,
    last_token_ns + {add} AS last_token_ns, [moment + {add} FOR moment IN token_ns] AS token_ns)
FROM client_line AS seen
    LEFT JOIN known AS exact ON exact.external_id = seen.request_id
    LEFT JOIN known AS indexed ON indexed.external_id = seen.request_id || '-0'
ORDER BY seen.send_ns, seen.request_id
"""


def has_records(run_dir: Path) -> bool:
    """Return whether a run directory has what clients saw."""
    return (run_dir / layout.CLIENT).exists()


def import_client(
    connection: duckdb.DuckDBPyConnection,
    run_dir: Path,
    warnings: list[str],
    recording: int = 1,
    correction_ns: int = 0,
    tell: Tell | None = None,
) -> None:
    """Read the run's client records. A request is one of the same recording, if that has one of that id.

    Args:
        connection: The trace, whose requests are there.
        run_dir: The run directory.
        warnings: Gets what could not be read.
        recording: Its key in table `recording`.
        correction_ns: What is added to its times.
        tell: Is told of lines that are left out.

    Raises:
        KvtraceError: A line is no client's record, and there is no `tell`. A torn last line is only warned of.
    """
    path = run_dir / layout.CLIENT
    rows = []
    for number, line in enumerate(read_json_lines(path, warnings, tell), 1):
        try:
            row = _row(path, number, line)
            if tell:
                for name in _TYPES:
                    _array(path, [row.get(name)], name)
        except KvtraceError as error:
            if tell is None:
                raise
            tell(str(error))
        else:
            rows.append(row)
    arrays = {name: _array(path, [row.get(name) for row in rows], name) for name in _TYPES}
    batch = pa.RecordBatch.from_pydict(arrays)
    connection.register("client_line", pa.RecordBatchReader.from_batches(batch.schema, [batch]))
    try:
        connection.execute(_INSERT.format(add=int(correction_ns)), {"recording": recording})
    finally:
        connection.unregister("client_line")


def count_join(connection: duckdb.DuckDBPyConnection) -> tuple[str, int, int]:
    """Count the clients' requests that an engine is known to have had, and the others; keep that in `join_count`."""
    counted = connection.execute("SELECT count(request), count(*) - count(request) FROM client_request").fetchone()
    matched, unmatched = counted if counted else (0, 0)
    row = ("client_request -> request", int(matched), int(unmatched))
    connection.execute("INSERT INTO join_count VALUES (?, ?, ?)", list(row))
    return row


def _array(path: Path, values: list[Any], name: str) -> pa.Array[Any]:
    try:
        array: pa.Array[Any] = pa.array(values, _TYPES[name])
        return array
    except (pa.ArrowException, OverflowError):
        for number, value in enumerate(values, 1):
            try:
                pa.array([value], _TYPES[name])
            except (pa.ArrowException, OverflowError) as error:
                raise KvtraceError(
                    f"{path}, line {number}: {name} is {value!r:.60}, expected a value of type {_TYPES[name]}"
                ) from error
        raise


def _row(path: Path, number: int, line: Any) -> dict[str, Any]:
    if not isinstance(line, dict) or any(line.get(name) is None for name in _REQUIRED):
        raise KvtraceError(
            f"{path}, line {number}: {str(line)[:60]!r} is no client's record; expected an object with "
            f"{' and '.join(_REQUIRED)}"
        )
    return line
