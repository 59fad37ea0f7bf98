"""A trace that can be given away: what names people, places and programs of one's own becomes a keyed hash of itself.

Equal texts become equal hashes in every column, so joins and groups stay. What is kept as it is, is listed here column
by column; a text column that is not listed is hashed, so that a new one is never forgotten. Content hashes of KV blocks
are keyed anew, too: with vLLM's hash seed known they would tell whether a given prompt was sent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from kvtrace.errors import KvtraceError
from kvtrace.ingest import build
from kvtrace.queries import Trace
from kvtrace.queries.text import quoted

KEY_BYTES = 32
_TEXT_BYTES = 10
_LETTERS = str.maketrans("0123456789", "ghijklmnop")
_NUMBER = re.compile(r"[-_/:. ]*[0-9]+$")
"""Number of a tag such as `chat-17`. Tags that differ only there keep a common prefix, for `prefix-phases`."""

_KEPT = {
    "block_hold": "held_by",
    "connector": "connector role recorded tier",
    "connector_call": "connector",
    "connector_lookup": "connector",
    "cost_model": "composition",
    "engine": "policy connector",
    "engine_sample": "part",
    "engine_source": "preemption_mode batching",
    "gpu_call": "name",
    "gpu_device": "name chip compute_capability",
    "gpu_metric": "metric",
    "gpu_process": "matched_by",
    "graph_node": "name",
    "hook": "hook state",
    "join_count": "name",
    "kernel_name": "short_name demangled_name mangled_name category_rule",
    "kv_event": "medium",
    "kv_group": "kind",
    "kv_layer": "name shape stride dtype timed in_kernel",
    "discarded": "event",
    "os_call": "name",
    "prefix_loss": "rule kind",
    "prefix_miss": "verdict key_difference gate_rule why",
    "process": "roles vllm_version",
    "source": "version schema_version",
    "source_table": "target",
    "stream": "event",
    "tier_block": "connector",
    "transfer_rate": "direction basis",
    "transfer_submit": "connector",
}
"""Text columns whose values are kvtrace's, vLLM's, CUDA's or the model architecture's own words."""

_KEPT_FACTS = (
    "trace_version", "kvtrace_version", "ingest_version", "source", "vllm_version", "gpu", "started_ns", "ended_ns",
    "exit_code", "pid",
)  # fmt: skip
_HASHED_FACTS = ("command",)


class Redacted(NamedTuple):
    """Result of a redaction: rows copied, columns hashed with their rows, and what was left out."""

    rows: int
    hashed: dict[str, int]
    left_out: list[str]


def redact_trace(trace: Path, target: Path, key: bytes) -> Redacted:
    """Write a new trace with hashes in place of identifiers.

    Args:
        trace: The trace. It is not changed.
        target: The new one; one that is there is replaced.
        key: Secret of the hashes. Traces redacted with one key can be joined with each other.

    Raises:
        KvtraceError: The trace cannot be read, or the new one not be written.
    """
    with Trace(trace):  # says clearly what is wrong with it
        pass
    if target.exists() and target.samefile(trace):
        raise KvtraceError(f"-o {target} is the trace itself; choose another file")
    hashed: dict[str, int] = {}
    left_out: list[str] = []
    rows = 0
    with build.new_trace(target) as connection:
        connection.execute(f"ATTACH {quoted(str(trace))} AS original (READ_ONLY)")
        connection.execute("SET enable_external_access = false")
        _define_hashes(connection, key)
        own, theirs = _columns(connection, "new_trace"), _columns(connection, "original")
        left_out += [f"table {name}" for name in sorted(theirs.keys() - own.keys())]
        for table, types in own.items():
            there = theirs.get(table, {})
            left_out += [f"column {table}.{name}" for name in sorted(there.keys() - types.keys())]
            names = [name for name in types if name in there]
            if table == "run" or not names or not _has_rows(connection, table):
                continue
            values = [_value(table, name, types[name]) for name in names]
            listed = ", ".join(f'"{name}"' for name in names)
            connection.execute(
                f'INSERT INTO "{table}" ({listed}) SELECT {", ".join(values)} FROM original.main."{table}"'
            )
            counts = ", ".join(f'count("{name}")' for name in names)
            found = connection.execute(f'SELECT count(*), {counts} FROM "{table}"').fetchall()[0]
            rows += found[0]
            hashed |= {
                f"{table}.{name}": count
                for name, value, count in zip(names, values, found[1:], strict=True)
                if count and "(" in value and not is_kept(table, name)
            }
        left_out += _copy_facts(connection, hashed)
        connection.execute("DETACH original")
    return Redacted(rows, hashed, left_out)


def _has_rows(connection: duckdb.DuckDBPyConnection, table: str) -> bool:
    return bool(connection.execute(f'SELECT EXISTS (FROM original.main."{table}")').fetchall()[0][0])


def _columns(connection: duckdb.DuckDBPyConnection, database: str) -> dict[str, dict[str, str]]:
    """The columns of a database's own tables with their types. Views are a stranger's SQL, and made anew."""
    rows = connection.execute(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() JOIN duckdb_tables() "
        "USING (database_name, schema_name, table_name) "
        "WHERE database_name = ? AND schema_name = 'main' ORDER BY table_name, column_index",
        [database],
    ).fetchall()
    found: dict[str, dict[str, str]] = {}
    for table, column, type_ in rows:
        found.setdefault(table, {})[column] = type_
    return found


def is_kept(table: str, column: str) -> bool:
    """Return whether the texts of a column stay as they are."""
    return column in _KEPT.get(table, "").split()


def _value(table: str, column: str, type_: str) -> str:
    """The SQL of a column's value in the new trace."""
    field = f'"{column}"'
    if type_ == "UBIGINT":
        return f"keyed_number({field})"
    if (table, column) == ("prefix_miss", "why"):  # kvtrace's own sentence, with another request's name in it
        names = "SELECT min(coalesce(external_id, internal_id)) FROM original.main.request q"
        name = f"({names} WHERE q.request = other_request)"
        return f"coalesce(replace({field}, 'equest ' || {name}, 'equest ' || keyed_text({name})), {field})"
    if type_ != "VARCHAR" or is_kept(table, column):
        return field
    if (table, column) == ("engine", "scheduler"):  # vLLM's own are no secret
        return f"CASE WHEN starts_with({field}, 'vllm.') THEN {field} ELSE keyed_text({field}) END"
    if (table, column) == ("request", "internal_id"):
        # A sample's is `N_` and its parent's, which view request_sample reads.
        parent = f"regexp_extract({field}, '^[0-9]+_(.+)$', 1)"
        sample = f"regexp_extract({field}, '^[0-9]+_') || keyed_text({parent})"
        known = f"{parent} IN (SELECT internal_id FROM original.main.request)"
        return f"CASE WHEN {known} THEN {sample} ELSE keyed_text({field}) END"
    return f"keyed_text({field})"


def _copy_facts(connection: duckdb.DuckDBPyConnection, hashed: dict[str, int]) -> list[str]:
    """Fill table `run`; returns what was left out. Its other facts, warnings say, are sentences with names in them."""
    facts = dict(connection.execute("SELECT key, value FROM original.main.run").fetchall())
    new = {key: facts.pop(key) for key in _KEPT_FACTS if key in facts}
    for key in _HASHED_FACTS:
        if key in facts:
            new[key] = connection.execute("SELECT keyed_text(?)", [facts.pop(key)]).fetchall()[0][0]
            hashed[f"run.{key}"] = 1
    facts.pop("redacted", None)
    new["redacted"] = "identifiers are keyed hashes"
    connection.executemany("INSERT INTO run VALUES (?, ?)", list(new.items()))
    return [f"{len(facts)} facts of table run"] if facts else []


def _define_hashes(connection: duckdb.DuckDBPyConnection, key: bytes) -> None:
    def number(value: bytes) -> int:
        return int.from_bytes(hashlib.blake2b(value, digest_size=8, key=key).digest(), "little")

    def text(value: str) -> str:
        match = _NUMBER.search(value)
        stem = value[: match.start()] if match else value
        digest = hashlib.blake2b(stem.encode(), digest_size=_TEXT_BYTES, key=key).hexdigest()
        hashed = digest.translate(_LETTERS) if stem else ""
        return f"{hashed}-{number(value.encode())}" if match else hashed

    functions: list[tuple[str, Callable[[Any], Any], str, pa.DataType]] = [
        ("keyed_text", text, "VARCHAR", pa.string()),
        ("keyed_number", lambda value: number(value.to_bytes(8, "little")), "UBIGINT", pa.uint64()),
    ]
    for name, of, type_, arrow in functions:
        connection.create_function(name, _by_value(of, arrow), [type_], type_, type="arrow")  # type: ignore[call-overload]


def _by_value(of: Callable[[Any], Any], type_: pa.DataType) -> Callable[[Any], Any]:
    """A function over a column from one over a value. DuckDB leaves NULLs out itself."""

    def over(column: Any) -> Any:
        encoded = column.combine_chunks().dictionary_encode()
        values = [None if value is None else of(value) for value in encoded.dictionary.to_pylist()]
        return pa.array(values, type_).take(encoded.indices)

    return over
