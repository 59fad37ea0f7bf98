"""The tables of a trace: one per declared event, and the few that ingest derives.

Every table and column carries a comment in DuckDB. `create_schema` is all that is needed to make an empty trace, which
is how the queries are tested.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb

from kvtrace.events import ENUMS, EVENTS, EnumType, Field, FinishReason, Type, enum_type
from kvtrace.ingest.discarded import DISCARDED
from kvtrace.ingest.gpu import schema as gpu
from kvtrace.ingest.gpu.enums import GPU_ENUMS
from kvtrace.ingest.schema.client import CLIENT_REQUEST
from kvtrace.ingest.schema.declare import BIGINT as _BIGINT
from kvtrace.ingest.schema.declare import BOOLEAN as _BOOLEAN
from kvtrace.ingest.schema.declare import INTEGER as _INTEGER
from kvtrace.ingest.schema.declare import TEXT as _TEXT
from kvtrace.ingest.schema.declare import Table, event_columns
from kvtrace.ingest.schema.declare import column as _column
from kvtrace.ingest.schema.hosts import HOSTS
from kvtrace.ingest.schema.imported import OUTSIDE_TABLES
from kvtrace.ingest.schema.misses import VERDICTS
from kvtrace.ingest.schema.reuse import REUSE_SIZE
from kvtrace.ingest.schema.tiles import TILE_TABLES
from kvtrace.queries.text import quoted
from kvtrace.queries.views import View, views

TRACE_VERSION = 12
"""Version of the tables below. Readers refuse a trace of another version and name both."""

RUN = Table(
    "run",
    "Facts about the recording as a whole, one a row.",
    (
        _column("key", _TEXT, "trace_version, kvtrace_version, vllm_version, gpu, command, started_ns, ended_ns, "
                              "exit_code, source, limits, frozen_ns, kept_from_ns, ... Of several recordings what "
                              "they agree in."),
        _column("value", _TEXT, "The fact as text."),
    ),
)  # fmt: skip

PROCESS = Table(
    "process",
    "The vLLM processes that recorded.",
    (
        _column("process_id", _INTEGER, "Key used by all other tables (from 1; in a recording in order of start)."),
        _column("roles", _TEXT, "Comma-separated: frontend, engine, worker."),
        _column("host", _TEXT, "Host name."),
        _column("pid", _INTEGER, "Process id on that host."),
        _column("ppid", _INTEGER, "Parent's process id."),
        _column("vllm_version", _TEXT, "vLLM's version."),
        _column("dp_rank", _INTEGER, "Data-parallel rank, of engines and workers."),
        _column("tp_rank", _INTEGER, "Tensor-parallel rank (workers)."),
        _column("pp_rank", _INTEGER, "Pipeline-parallel rank (workers)."),
        _column("started_ns", _BIGINT, "When it began to record."),
        _column("stopped", _TEXT, "Why recording stopped early; NULL if it did not."),
        _column("recording", _INTEGER, "The recording it is in (`recording.recording`)."),
        _column("host_clock", _INTEGER, "Its host's clock (`host_clock.host_clock`)."),
    ),
)

ENGINE = Table(
    "engine",
    "Configuration of each engine (an EngineCore, or the part of an offline process that schedules).",
    (
        _column("engine_id", _INTEGER, "`process.process_id` of the engine."),
        _column("model", _TEXT, "Model name or path."),
        _column("block_size_tokens", _INTEGER, "Tokens a block."),
        _column("blocks", _INTEGER, "GPU blocks that requests can use (the null block is not counted)."),
        _column("kv_groups", _INTEGER, "KV cache groups."),
        _column("max_num_batched_tokens", _INTEGER, "Most tokens a step."),
        _column("max_num_seqs", _INTEGER, "Most running requests."),
        _column("max_model_len", _INTEGER, "Longest sequence."),
        _column("policy", _TEXT, "Scheduling policy."),
        _column("prefix_caching", _BOOLEAN, "Prefix caching is on."),
        _column("chunked_prefill", _BOOLEAN, "Chunked prefill is on."),
        _column("async_scheduling", _BOOLEAN, "Steps are scheduled ahead of their results."),
        _column("block_bytes", _BIGINT, "Bytes of KV a block holds over all layers, on one rank; NULL if unknown."),
        _column("connector", _TEXT, "KV connector, if any."),
        _column("tp_size", _INTEGER, "Tensor-parallel size."),
        _column("pp_size", _INTEGER, "Pipeline-parallel size."),
        _column("dp_size", _INTEGER, "Data-parallel size."),
        _column(
            "hash_block_tokens", _INTEGER, "Tokens a content hash covers; block_size_tokens if all groups are alike."
        ),
        _column("scheduler", _TEXT, "The scheduler's class, as module.Class; NULL in recordings of earlier kvtraces."),
        _column(
            "settings",
            _TEXT,
            "Further settings that decide how it schedules, as JSON without secrets: scheduler, kv_cache, "
            "kv_cache_groups, kv_transfer, lora, speculative, ttl_pin. NULL in recordings of earlier kvtraces.",
        ),
    ),
)

KV_GROUP = Table(
    "kv_group",
    "The KV cache groups of each engine: layers that share block tables. Empty in recordings of earlier kvtraces.",
    (
        _column("engine_id", _INTEGER, "The engine."),
        _column("kv_group", _INTEGER, "Its number, as in other tables."),
        _column("kind", _TEXT, "What it keeps of a sequence: full, every block; window or chunk, those of its window; "
                               "state, one state; other."),
        _column("block_size_tokens", _INTEGER, "Tokens a block: slots, or the tokens that one state stands for."),
        _column("layers", _INTEGER, "Layers."),
        _column("window_tokens", _INTEGER, "Tokens of the sliding window or chunk; NULL without one."),
    ),
)  # fmt: skip

REQUEST = Table(
    "request",
    "A request's life in one row, put together from request_arrival, request_owner, request_queued and request_event.",
    (
        _column("request", _INTEGER, "Key used by all other tables."),
        _column("engine_id", _INTEGER, "The engine that served it; NULL if it never reached one."),
        _column("internal_id", _TEXT, "vLLM's internal id."),
        _column("external_id", _TEXT, "The id the client knows; NULL if the API process was not recorded."),
        _column("session", _TEXT, "Session tag, if the client passed one."),
        _column("turn", _INTEGER, "Turn tag, if the client passed one."),
        _column(
            "tenant", _TEXT, "Tenant of the client's request, hashed unless names were asked for; NULL if unknown."
        ),
        _column("lora", _TEXT, "Name of its LoRA adapter; NULL without one."),
        _column("priority", _BIGINT, "Priority."),
        _column("prompt_tokens", _INTEGER, "Prompt length."),
        _column("max_tokens", _INTEGER, "Most output tokens asked for."),
        _column("output_tokens", _INTEGER, "Output tokens at its end, or the last known; NULL if never scheduled."),
        _column("local_cached_tokens", _INTEGER, "Tokens found in the GPU prefix cache at its first admission."),
        _column("external_cached_tokens", _INTEGER, "Tokens found by a KV connector at its first admission."),
        _column("preemptions", _INTEGER, "Times it was preempted."),
        _column("arrival_ns", _BIGINT, "vLLM's arrival time."),
        _column("queued_ns", _BIGINT, "When it entered the scheduler's queue."),
        _column("scheduled_ns", _BIGINT, "When it was first admitted."),
        _column("first_token_ns", _BIGINT, "When its first output token came back from the model."),
        _column("finished_ns", _BIGINT, "When it ended; NULL if it had not when the recording did."),
        Field("finish_reason", Type("enum", "", "ENUM"), "Why it ended.", FinishReason),
    ),
)

HOOK = Table(
    "hook",
    "Where kvtrace hooked into vLLM, by process.",
    (
        _column("process_id", _INTEGER, "The process."),
        _column("hook", _TEXT, "The vLLM function, as module:Class.function, or an attribute that is absent."),
        _column(
            "state",
            _TEXT,
            "installed; absent: this vLLM has no such function or attribute; disabled: it failed and was cut off.",
        ),
        _column(
            "detail",
            _TEXT,
            "What is lost without it, or the error; of an object's method that is installed, where vLLM declares it.",
        ),
    ),
)

STREAM = Table(
    "stream",
    "What was read for each event and process.",
    (
        _column("process_id", _INTEGER, "The process."),
        _column("event", _TEXT, "The event."),
        _column("segments", _INTEGER, "Segment files."),
        _column("records", _BIGINT, "Whole records read."),
        _column(
            "torn", _BIGINT, "Records left out as not whole: being written when the process died, or overwritten since."
        ),
        _column("dropped", _BIGINT, "Records lost after recording stopped (a full disk, say)."),
    ),
)

CLOCK = Table(
    "clock",
    "Readings of both clocks, and how well one offset per host explains them.",
    (
        _column("process_id", _INTEGER, "The process that read them."),
        _column("monotonic_ns", _BIGINT, "CLOCK_MONOTONIC."),
        _column("realtime_ns", _BIGINT, "CLOCK_REALTIME at the same moment."),
        _column("offset_ns", _BIGINT, "Offset that was applied: time_ns = monotonic + offset."),
        _column(
            "residual_ns",
            _BIGINT,
            "realtime_ns - (monotonic_ns + offset_ns): clock steps and drift show "
            "here, and the correction of a host's clock (`host_clock`), negated.",
        ),
    ),
)

KV_LAYER = Table(
    "kv_layer",
    "Where each layer's KV lies on the GPU, so that layer, block and head give an address.",
    (
        _column("process_id", _INTEGER, "The worker."),
        _column("layer", _INTEGER, "Index of the layer, as in kv_window."),
        _column("name", _TEXT, "vLLM's name of the layer."),
        _column("address", _BIGINT, "Device address of the KV tensor."),
        _column("shape", _TEXT, "Its shape, a JSON list."),
        _column("stride", _TEXT, "Its strides in elements, a JSON list."),
        _column("dtype", _TEXT, "Its element type."),
        _column(
            "timed",
            _TEXT,
            "When it has stamps: `always`, `outside_graphs` (with CUDA graphs its windows are derived from the layers "
            "around it) or `never`; NULL: never, because its kernels observe all of it, at `--kv-level tile`, or "
            "recorded before that was said.",
        ),
        _column(
            "in_kernel",
            _TEXT,
            "Windows that its own kernels observe, in every step: `attention` or `write, attention`. They begin when "
            "the first program does and end when the last one has used or stored its V; those of stamps also contain "
            "the way to and from the kernels. NULL: none.",
        ),
    ),
)

GPU_CLOCK = Table(
    "gpu_clock",
    "Calibrations of the GPU's global timer against the host's clock.",
    (
        _column("process_id", _INTEGER, "The worker."),
        _column("time_ns", _BIGINT, "When it was calibrated."),
        _column("offset_ns", _BIGINT, "CLOCK_MONOTONIC minus global timer then."),
        _column(
            "drift_ppb",
            _BIGINT,
            "How much faster CLOCK_MONOTONIC runs, in 1e-9, since an earlier one. Times are taken at this drift until "
            "the next one. NULL: not known yet (0.25 s after the first one), or recorded by an earlier kvtrace; times "
            "are taken without.",
        ),
        _column("uncertainty_ns", _BIGINT, "Half the round trip it was read in: the offset's bound."),
        _column("moved_ns", _BIGINT, "How far the offset had moved since the one before: drift and uncertainty."),
        _column("event_uncertainty_ns", _BIGINT, "How far windows outside CUDA graphs may be off the global timer."),
    ),
)

GPU_MEMORY = Table(
    "gpu_memory",
    "The GPU's memory as the driver and PyTorch's allocator tell it: before the first step, then every ten seconds.",
    (
        _column("process_id", _INTEGER, "The worker."),
        _column("time_ns", _BIGINT, "When."),
        _column("free_bytes", _BIGINT, "Free on the device, for all processes."),
        _column("total_bytes", _BIGINT, "The device's."),
        _column("allocated_bytes", _BIGINT, "In tensors of this process: weights, KV cache, activations."),
        _column("reserved_bytes", _BIGINT, "Taken from the device by this process's PyTorch."),
    ),
)

CONNECTOR = Table(
    "connector",
    "The KV connectors of each process, and how far kvtrace could look into them.",
    (
        _column("process_id", _INTEGER, "The process."),
        _column("part", _INTEGER, "0: the engine's connector; from 1: the parts of a MultiConnector, in order."),
        _column("connector", _TEXT, "Its class."),
        _column("role", _TEXT, "scheduler or worker: vLLM makes one for each side."),
        _column("recorded", _TEXT, "in detail: down to the transfer and the block; generically: by vLLM's interface."),
        _column("tier", _TEXT, "The tier its scheduler's side manages."),
        _column("capacity_blocks", _BIGINT, "Blocks or chunks that tier has room for."),
        _column("blocks_per_chunk", _INTEGER, "GPU blocks in one of them."),
    ),
)

JOIN_COUNT = Table(
    "join_count",
    "How many rows each join of the trace matched.",
    (
        _column("name", _TEXT, "The join."),
        _column("matched", _BIGINT, "Rows with a partner."),
        _column("unmatched", _BIGINT, "Rows without one."),
    ),
)

TABLES: tuple[Table, ...] = (
    RUN,
    PROCESS,
    ENGINE,
    KV_GROUP,
    REQUEST,
    CLIENT_REQUEST,
    HOOK,
    STREAM,
    DISCARDED,
    CLOCK,
    KV_LAYER,
    GPU_CLOCK,
    GPU_MEMORY,
    *TILE_TABLES,
    JOIN_COUNT,
    CONNECTOR,
    *HOSTS,
    *VERDICTS,
    REUSE_SIZE,
    *OUTSIDE_TABLES,
    *gpu.TABLES,
)

ALL_ENUMS: tuple[EnumType, ...] = (*ENUMS, *GPU_ENUMS)
"""Enums of the events, then those of the other tables."""


def create_schema(connection: duckdb.DuckDBPyConnection) -> None:
    """Create all enums, tables and views of an empty trace, with comments."""
    connection.execute("BEGIN")  # a thousand statements, each of which would write to the file
    for members in ALL_ENUMS:
        labels = ", ".join(f"'{member.name}'" for member in members)
        connection.execute(f"CREATE TYPE {enum_type(members)} AS ENUM ({labels})")
    for event in EVENTS.values():
        _create_table(connection, event.name, event.doc, event_columns(event))
    for table in TABLES:
        _create_table(connection, table.name, table.doc, table.fields)
    for view in views():
        _create_view(connection, view)
    connection.execute("COMMIT")


def fill_stored(connection: duckdb.DuckDBPyConnection) -> None:
    """Fill the tables of the views that are made at ingest."""
    for view in views():
        if view.stored and connection.execute(f"SELECT {view.condition}").fetchall() == [(True,)]:
            connection.execute(f"INSERT INTO {view.name} {view.sql}")


def _create_view(connection: duckdb.DuckDBPyConnection, view: View) -> None:
    if view.stored:
        connection.execute(f"CREATE TABLE {view.name} AS {view.sql} WITH NO DATA")
    else:
        connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")
    connection.execute(f"COMMENT ON {'TABLE' if view.stored else 'VIEW'} {view.name} IS {quoted(view.doc)}")
    _comment_columns(connection, view.name, {column.name: column.doc for column in view.columns})


def _create_table(connection: duckdb.DuckDBPyConnection, name: str, doc: str, fields: tuple[Field, ...]) -> None:
    columns = ", ".join(f'"{field.name}" {field.sql_type}' for field in fields)
    connection.execute(f"CREATE TABLE {name} ({columns})")
    connection.execute(f"COMMENT ON TABLE {name} IS {quoted(doc)}")
    _comment_columns(connection, name, {field.name: field.doc for field in fields})


def _comment_columns(connection: duckdb.DuckDBPyConnection, table: str, docs: Mapping[str, str]) -> None:
    for name, doc in docs.items():
        connection.execute(f'COMMENT ON COLUMN {table}."{name}" IS {quoted(doc)}')
