"""The small tables that say what was recorded: run, process, engine, hook, the GPU, clocks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import duckdb

from kvtrace import __version__
from kvtrace.events import Field, GroupKind
from kvtrace.format.reader import ProcessRecording, Recording
from kvtrace.ingest.clock import Reading
from kvtrace.ingest.discarded import begins_ns
from kvtrace.ingest.schema.hosts import RECORDING
from kvtrace.ingest.schema.trace import (
    CONNECTOR,
    ENGINE,
    GPU_CLOCK,
    GPU_MEMORY,
    KV_GROUP,
    KV_LAYER,
    PROCESS,
    TRACE_VERSION,
)

_OF_MANIFEST = ("command", "started_ns", "ended_ns", "exit_code", "pid", "limits", "frozen_ns")
_INTEGER_BITS = {"INTEGER": 31, "BIGINT": 63}
_RENAMED_FACTS = {
    "max_seqs": "max_num_seqs",
    "max_batched_tokens": "max_num_batched_tokens",
    "max_model_tokens": "max_model_len",
}
"""Facts of an engine under the names that recordings before trace version 9 give them."""


def insert_rows(connection: duckdb.DuckDBPyConnection, table: str, rows: Iterable[Sequence[Any]]) -> None:
    """Append a few rows to a table."""
    for row in rows:
        connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", list(row))


def insert_run(connection: duckdb.DuckDBPyConnection, recordings: Sequence[Recording], warnings: Sequence[str]) -> None:
    """Fill table `run`: the manifests' facts that hold for all recordings, versions, what could not be relied on."""
    versions = sorted({p.vllm_version for recording in recordings for p in recording.processes if p.vllm_version})
    gpus = sorted({p.gpu for recording in recordings for p in recording.processes if p.gpu})
    alone = recordings[0].run_dir if len(recordings) == 1 else None
    folders = [f"{alone}/"] if alone else [f"{recording.run_dir.parent}/" for recording in recordings]
    text = "\n".join(warnings)
    for folder in folders:
        text = text.replace(folder, "") if folder != "./" else text
    started, ended = (
        connection.execute(f"SELECT {pick} FROM recording").fetchall()[0][0]
        for pick in ("min(started_ns)", "CASE WHEN count(ended_ns) = count(started_ns) THEN max(ended_ns) END")
    )
    facts: dict[str, Any] = {
        "trace_version": TRACE_VERSION,
        "kvtrace_version": _agreed(recordings, "kvtrace_version") or __version__,
        "ingest_version": __version__,
        "source": "capture",
        "vllm_version": ", ".join(versions) or None,
        "gpu": ", ".join(gpus) or None,
        **{key: _agreed(recordings, key) for key in _OF_MANIFEST},
        "started_ns": started,
        "ended_ns": ended,
        "recordings": len(recordings) if alone is None else None,
        "kept_from_ns": begins_ns(connection),
        "warnings": text or None,
    }
    insert_rows(connection, "run", ((key, _text(value)) for key, value in facts.items() if value is not None))


def _agreed(recordings: Sequence[Recording], key: str) -> Any:
    """A manifest's fact, if all recordings say the same; else None."""
    values = [recording.manifest.get(key) for recording in recordings]
    return values[0] if all(value == values[0] for value in values) else None


def insert_recordings(
    connection: duckdb.DuckDBPyConnection, recordings: Sequence[Recording], corrections_ns: Sequence[int]
) -> None:
    """Fill table `recording`; the corrections are those of the clocks that their launchers read."""
    for number, (recording, correction_ns) in enumerate(zip(recordings, corrections_ns, strict=True), 1):
        manifest = recording.manifest
        times = {
            key: manifest[key] + correction_ns
            for key in ("started_ns", "ended_ns")
            if isinstance(manifest.get(key), int)
        }
        command = manifest.get("command")
        facts = {
            **manifest,
            **times,
            "recording": number,
            "name": recording.run_dir.resolve().name,
            "command": None if command is None else _text(command),
        }
        insert_rows(
            connection, "recording", [_fit(RECORDING.fields, facts, str(recording.run_dir), recording.warnings)]
        )


def insert_run_without_recording(connection: duckdb.DuckDBPyConnection, warnings: Sequence[str]) -> None:
    """Fill table `run` of a trace that is made of other sources alone."""
    rows = connection.execute("SELECT DISTINCT kind::VARCHAR FROM source ORDER BY ALL").fetchall()
    facts: dict[str, Any] = {
        "trace_version": TRACE_VERSION,
        "kvtrace_version": __version__,
        "ingest_version": __version__,
        "source": ", ".join(kind for (kind,) in rows),
        "warnings": "\n".join(warnings) or None,
    }
    insert_rows(connection, "run", ((key, _text(value)) for key, value in facts.items() if value is not None))


def insert_processes(
    connection: duckdb.DuckDBPyConnection,
    processes: Sequence[ProcessRecording],
    offsets_ns: Sequence[int],
    clocks: Sequence[int],
) -> list[str]:
    """Fill tables `process`, `engine` and `hook`; returns warnings about facts that are not what they should be."""
    warnings: list[str] = []
    for process_id, (process, offset_ns) in enumerate(zip(processes, offsets_ns, strict=True), 1):
        facts = {
            **process.facts,
            "dp_rank": process.engine.get("dp_rank"),
            **process.rank,
            "process_id": process_id,
            "roles": ",".join(process.roles),
            "vllm_version": process.vllm_version,
            "started_ns": process.clocks[0].monotonic_ns + offset_ns,
            "stopped": process.stopped,
            "recording": process.recording,
            "host_clock": clocks[process_id - 1],
        }
        where = str(process.directory)
        insert_rows(connection, "process", [_fit(PROCESS.fields, facts, where, warnings)])
        if "engine" in process.roles or process.engine:
            facts = {_RENAMED_FACTS.get(key, key): value for key, value in process.engine.items()}
            facts["engine_id"] = process_id
            insert_rows(connection, "engine", [_fit(ENGINE.fields, facts, where, warnings)])
            groups = (_fit(KV_GROUP.fields, group, where, warnings) for group in kv_groups(facts))
            insert_rows(connection, "kv_group", groups)
        hooks = ((process_id, hook, state, detail or None) for hook, (state, detail) in process.hooks.items())
        insert_rows(connection, "hook", hooks)
        for layer in process.layers:
            facts = {**layer, "process_id": process_id, "layer": layer.get("index")}
            facts |= {name: json.dumps(layer.get(name)) for name in ("shape", "stride")}
            insert_rows(connection, "kv_layer", [_fit(KV_LAYER.fields, facts, where, warnings)])
        for connector in process.connectors:
            facts = {**connector, "process_id": process_id}
            insert_rows(connection, "connector", [_fit(CONNECTOR.fields, facts, where, warnings)])
        for table, lines in ((GPU_CLOCK, process.gpu_clocks), (GPU_MEMORY, process.gpu_memory)):
            for line in lines:
                facts = {**line, "process_id": process_id, "time_ns": line["monotonic_ns"] + offset_ns}
                insert_rows(connection, table.name, [_fit(table.fields, facts, where, warnings)])
    return warnings


def kv_groups(engine: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The KV cache groups that an engine's settings tell of."""
    try:
        groups = json.loads(engine.get("settings") or "{}")["kv_cache_groups"]
        specs = [group.get("spec") or {} for group in groups]
        for number, (group, spec) in enumerate(zip(groups, specs, strict=True)):
            yield {
                "engine_id": engine["engine_id"],
                "kv_group": number,
                "kind": GroupKind.of(map(str, [group.get("kind"), *(group.get("bases") or ())])).name,
                "block_size_tokens": spec.get("block_size"),
                "layers": group.get("layers"),
                "window_tokens": spec.get("sliding_window") or spec.get("attention_chunk_size"),
            }
    except (KeyError, TypeError, ValueError, AttributeError):  # not what kvtrace records: nothing is told
        return


def insert_clocks(connection: duckdb.DuckDBPyConnection, readings: Iterable[Reading]) -> None:
    """Fill table `clock`."""
    insert_rows(
        connection,
        "clock",
        ((r.process_id, r.clock.monotonic_ns, r.clock.realtime_ns, r.offset_ns, r.residual_ns) for r in readings),
    )


def _fit(fields: Sequence[Field], facts: dict[str, Any], where: str, warnings: list[str]) -> list[Any]:
    """The facts as a row of a table. One of another type than its column's is left out, and said so."""
    row = []
    for field in fields:
        value = facts.get(field.name)
        if value is not None and not _fits(value, field.type.sql):
            warnings.append(f"{where}: {field.name} is {value!r:.60}, expected a {field.type.sql}; it was left out")
            value = None
        row.append(value)
    return row


def _fits(value: Any, sql_type: str) -> bool:
    if sql_type == "BOOLEAN":
        return isinstance(value, bool)
    if sql_type == "VARCHAR":
        return isinstance(value, str)
    bound = 1 << _INTEGER_BITS[sql_type]
    return isinstance(value, int) and not isinstance(value, bool) and -bound <= value < bound


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
