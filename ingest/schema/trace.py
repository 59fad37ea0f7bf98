"""The tables of a trace: one per declared event, and the few that ingest derives.

Every table and column carries a comment in DuckDB. `create_schema` is all that is needed to make an empty trace, which
is how the queries are tested.
"""

from __future__ import annotations

import duckdb

from kvtrace.events import ENUMS, EVENTS, STEP_SCHEDULE, AccessKind, EnumType, Field, FinishReason, Type, _snake
from kvtrace.ingest.derive.block_lookup import BLOCK_LOOKUP
from kvtrace.ingest.derive.ledger import LEDGER
from kvtrace.ingest.derive.preemptions import PREEMPTION
from kvtrace.ingest.discarded import DISCARDED
from kvtrace.ingest.gpu import schema as gpu
from kvtrace.ingest.gpu.enums import GPU_ENUMS
from kvtrace.ingest.schema.client import CLIENT_REQUEST
from kvtrace.ingest.schema.declare import BIGINT as _BIGINT
from kvtrace.ingest.schema.declare import INTEGER as _INTEGER
from kvtrace.ingest.schema.declare import TEXT as _TEXT
from kvtrace.ingest.schema.declare import Table, event_columns
from kvtrace.ingest.schema.declare import column as _column
from kvtrace.ingest.schema.hosts import HOSTS
from kvtrace.ingest.schema.imported import OUTSIDE_TABLES
from kvtrace.ingest.schema.misses import VERDICTS
from kvtrace.ingest.schema.tiles import TILE_TABLES
from kvtrace.ingest.views.run_views import STUDIES

TRACE_VERSION = 9
"""Of the tables below. Readers refuse a trace of another version and name both."""

RUN = Table(
    "run",
    "Facts about the recording as a whole, one a row.",
    (
        _column("key", _TEXT, "trace_version, kvtrace_version, vllm_version, command, started_ns, ended_ns, exit_code, "
                              "source, limits, frozen_ns, kept_from_ns, ... Of several recordings what they agree in."),
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
        _column("prefix_caching", Type("bool", "", "BOOLEAN"), "Prefix caching is on."),
        _column("chunked_prefill", Type("bool", "", "BOOLEAN"), "Chunked prefill is on."),
        _column("async_scheduling", Type("bool", "", "BOOLEAN"), "Steps are scheduled ahead of their results."),
        _column("block_bytes", _BIGINT, "Bytes of KV a block holds over all layers, on one rank; NULL if unknown."),
        _column("connector", _TEXT, "KV connector, if any."),
        _column("tp_size", _INTEGER, "Tensor-parallel size."),
        _column("pp_size", _INTEGER, "Pipeline-parallel size."),
        _column("dp_size", _INTEGER, "Data-parallel size."),
        _column(
            "hash_block_tokens", _INTEGER, "Tokens a content hash covers; block_size_tokens if all groups are alike."
        ),
        _column("scheduler", _TEXT, "The scheduler's class, as module.Class; NULL in recordings of earlier kvtraces."),
    ),
)

REQUEST = Table(
    "request",
    "A request's life in one row, put together from request_arrival, request_queued and request_event.",
    (
        _column("request", _INTEGER, "Key used by all other tables."),
        _column("engine_id", _INTEGER, "The engine that served it; NULL if it never reached one."),
        _column("internal_id", _TEXT, "vLLM's internal id."),
        _column("external_id", _TEXT, "The id the client knows; NULL if the API process was not recorded."),
        _column("session", _TEXT, "Session tag, if the client passed one."),
        _column("turn", _INTEGER, "Turn tag, if the client passed one."),
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
        _column("torn", _BIGINT, "Records that were being written when the process died."),
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
            "around it) or `never`; NULL: at `--kv-level tile`, or recorded before that was said.",
        ),
    ),
)

GPU_CLOCK = Table(
    "gpu_clock",
    "Calibrations of the GPU's global timer against the host's clock.",
    (
        _column("process_id", _INTEGER, "The worker."),
        _column("time_ns", _BIGINT, "When it was calibrated."),
        _column("offset_ns", _BIGINT, "CLOCK_MONOTONIC minus global timer, applied until the next one."),
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

JOIN_COUNT = Table(
    "join_count",
    "How many rows each join of the trace matched.",
    (
        _column("name", _TEXT, "The join."),
        _column("matched", _BIGINT, "Rows with a partner."),
        _column("unmatched", _BIGINT, "Rows without one."),
    ),
)

STEP = Table(
    "step",
    "A scheduler step from `schedule` to its results: step_schedule joined with step_update.",
    (
        *event_columns(STEP_SCHEDULE),
        _column("update_ns", _BIGINT, "When the model's output was there; NULL if the recording ended before."),
        _column("end_ns", _BIGINT, "When the results were processed."),
        _column("duration_ns", _BIGINT, "end_ns - start_ns. Steps overlap under async scheduling."),
        _column("interval_ns", _BIGINT, "Wall time the step added: end_ns - max(start_ns, end_ns of the step before)."),
        _column("scheduled_requests", _INTEGER, "Requests scheduled, all phases."),
        _column("scheduled_tokens", _INTEGER, "Tokens scheduled, all phases."),
        _column("output_tokens", _INTEGER, "Tokens the model returned."),
        _column("finished_requests", _INTEGER, "Requests that ended with it."),
    ),
    view="""
        SELECT s.*, u.update_ns, u.end_ns,
            u.end_ns - s.start_ns AS duration_ns,
            u.end_ns - greatest(s.start_ns, lag(u.end_ns) OVER (PARTITION BY s.engine_id ORDER BY s.step))
                AS interval_ns,
            s.prefill_requests + s.chunked_prefill_requests + s.decode_requests + s.resumed_requests
                AS scheduled_requests,
            coalesce(
                s.prefill_tokens + s.chunked_prefill_tokens + s.decode_tokens + s.resumed_tokens,
                s.budget_tokens - s.budget_left_tokens
            ) AS scheduled_tokens,
            u.output_tokens, u.finished_requests
        FROM step_schedule s LEFT JOIN step_update u USING (engine_id, step)
    """,
)

STEP_BLOCK = Table(
    "step_block",
    "The blocks each request had in its block table in each step it ran in, put together from the deltas. Exact for "
    "models with one KV cache group; a sliding window reads fewer of them.",
    (
        _column("engine_id", _INTEGER, "The engine (`process.process_id`)."),
        _column("step", _INTEGER, "Scheduler step."),
        _column("request", _INTEGER, "Request."),
        _column("kv_group", Type("u8", "", "UTINYINT"), "KV cache group."),
        _column("position", _INTEGER, "Index in the request's block table."),
        _column("block_id", _INTEGER, "The block there."),
        _column("written", Type("bool", "", "BOOLEAN"), "Holds some of the tokens computed in this step."),
    ),
    view="""
        WITH tables AS (
            SELECT engine_id, request, step AS since,
                lead(step) OVER (PARTITION BY engine_id, request ORDER BY step) AS until
            FROM (SELECT DISTINCT engine_id, request, step FROM block_table WHERE op = 'set')
        ), entries AS (
            SELECT t.*, tables.until FROM block_table t ASOF JOIN tables
            ON t.engine_id = tables.engine_id AND t.request = tables.request AND t.step >= tables.since
        )
        SELECT r.engine_id, r.step, r.request, e.kv_group, e.position, e.block_id,
            (e.position::BIGINT + 1) * g.block_size_tokens > r.computed_tokens AS written
        FROM step_request r
        JOIN entries e ON e.engine_id = r.engine_id AND e.request = r.request
            AND e.step <= r.step AND (e.until IS NULL OR r.step < e.until)
        JOIN engine g ON g.engine_id = r.engine_id
        WHERE e.position * g.block_size_tokens < r.computed_tokens + r.scheduled_tokens
    """,
)

KV_ACCESS = Table(
    "kv_access",
    "Which layer read or wrote which block for which request, and when. Where tiles were recorded, a row a "
    "program, tile and block (observed); else kv_window spread over step_block (derived); without windows, as on a "
    "CPU, the step's time spread over step_block, all layers in one row (derived). Ask for few steps at a time.",
    (
        _column("process_id", _INTEGER, "The worker (`process.process_id`)."),
        _column("engine_id", _INTEGER, "The engine."),
        _column("step", _INTEGER, "Scheduler step."),
        _column("layer", _INTEGER, "Layer; NULL: all, because no layer was timed."),
        _column("head", _INTEGER, "KV head of this rank; NULL: all."),
        _column("request", _INTEGER, "Request."),
        _column("kv_group", Type("u8", "", "UTINYINT"), "KV cache group."),
        _column("position", _INTEGER, "Index in the request's block table."),
        _column("block_id", _INTEGER, "The block, as the block manager counts."),
        Field("kind", Type("enum", "", "ENUM"), "What was done with the block.", AccessKind),
        _column(
            "start_ns",
            _BIGINT,
            "Not before: start of the layer's window, or when the program turned to the tile; "
            "without either, when the forward pass was entered on the host.",
        ),
        _column(
            "end_ns",
            _BIGINT,
            "Not after: end of the layer's window, or when the tile had been used or its store "
            "issued; without either, when the step's results were there (NULL if they never were).",
        ),
        _column("observed", Type("bool", "", "BOOLEAN"), "The access itself was observed; false: derived."),
    ),
    view="""
        WITH listed AS (
            SELECT DISTINCT l.process_id, l.engine_id, l.step, q.request, l.row, l.first_token,
                l.first_token // e.block_size_tokens AS position,
                l.kernel_block * l.kernel_block_tokens // e.block_size_tokens AS block_id
            FROM gpu_block_list l JOIN tile_request q USING (process_id, step, row)
            JOIN engine e ON e.engine_id = l.engine_id
        ), reads AS (
            SELECT t.process_id, t.engine_id, t.step, p.layer, p.head, l.request, l.position, l.block_id,
                t.start_ns, t.k_ns,
                coalesce(t.v_start_ns, CASE WHEN t.v_ns IS NOT NULL THEN t.k_ns END) AS v_start_ns, t.v_ns
            FROM gpu_tile t
            JOIN gpu_program p USING (process_id, step, program)
            JOIN (SELECT DISTINCT process_id, step, row, request, position, block_id, first_token FROM listed) l
            ON l.process_id = t.process_id AND l.step = t.step AND l.row = p.row
                AND l.first_token >= t.tile * p.tile_tokens AND l.first_token < (t.tile + 1) * p.tile_tokens
        ), writes AS (
            SELECT w.*, l.request, l.position, w.slot // e.block_size_tokens AS block_id
            FROM gpu_write w JOIN engine e USING (engine_id)
            LEFT JOIN (SELECT DISTINCT process_id, step, request, position, block_id FROM listed) l
            ON l.process_id = w.process_id AND l.step = w.step AND l.block_id = w.slot // e.block_size_tokens
        )
        SELECT process_id, engine_id, step, layer, head, request, NULL::UTINYINT AS kv_group, position, block_id,
            unnest(['k_read', 'v_read'])::e_access_kind AS kind,
            unnest([start_ns, v_start_ns]) AS start_ns, unnest([k_ns, v_ns]) AS end_ns, true AS observed
        FROM reads
        UNION ALL
        SELECT process_id, engine_id, step, layer, NULL, request, NULL, position, block_id,
            unnest(['k_write', 'v_write'])::e_access_kind, unnest([start_ns, coalesce(v_start_ns, k_ns)]),
            unnest([k_ns, v_ns]), true
        FROM writes
        UNION ALL
        SELECT w.process_id, w.engine_id, w.step, w.layer, NULL, b.request, b.kv_group, b.position, b.block_id,
            w.kind::VARCHAR::e_access_kind, w.start_ns, w.end_ns, false
        FROM kv_window w ANTI JOIN tile_step t ON w.process_id = t.process_id AND w.step = t.step
        JOIN step_block b ON w.engine_id = b.engine_id AND w.step = b.step
        WHERE w.kind = 'attention' OR b.written
        UNION ALL
        SELECT f.process_id, f.engine_id, f.step, NULL, NULL, b.request, b.kv_group, b.position, b.block_id,
            unnest(CASE WHEN b.written THEN ['write', 'attention'] ELSE ['attention'] END)::e_access_kind,
            f.start_ns, u.update_ns, false
        FROM forward f
        ANTI JOIN tile_step t ON f.process_id = t.process_id AND f.step = t.step
        ANTI JOIN kv_window w ON f.process_id = w.process_id AND f.step = w.step
        JOIN step_block b ON f.engine_id = b.engine_id AND f.step = b.step
        LEFT JOIN step_update u ON u.engine_id = f.engine_id AND u.step = f.step
    """,
)

TABLES: tuple[Table, ...] = (
    RUN,
    PROCESS,
    ENGINE,
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
    STEP,
    STEP_BLOCK,
    BLOCK_LOOKUP,
    KV_ACCESS,
    PREEMPTION,
    *LEDGER,
    *HOSTS,
    *VERDICTS,
    *OUTSIDE_TABLES,
    *STUDIES,
    *gpu.TABLES,
)

ALL_ENUMS: tuple[EnumType, ...] = (*ENUMS, *GPU_ENUMS)
"""Of the events, then of the other tables."""


def create_schema(connection: duckdb.DuckDBPyConnection) -> None:
    """Create all enums, tables and views of an empty trace, with comments."""
    connection.execute("BEGIN")  # a thousand statements, each of which would write to the file
    for members in ALL_ENUMS:
        labels = ", ".join(f"'{member.name}'" for member in members)
        connection.execute(f"CREATE TYPE e_{_snake(members.__name__)} AS ENUM ({labels})")
    for event in EVENTS.values():
        _create_table(connection, event.name, event.doc, event_columns(event))
    for table in TABLES:
        if table.view is None:
            _create_table(connection, table.name, table.doc, table.fields)
        else:
            connection.execute(f"CREATE VIEW {table.name} AS {table.view}")
            connection.execute(f"COMMENT ON VIEW {table.name} IS {_quote(table.doc)}")
            _comment_columns(connection, table.name, table.fields)
    connection.execute("COMMIT")


def _create_table(connection: duckdb.DuckDBPyConnection, name: str, doc: str, fields: tuple[Field, ...]) -> None:
    columns = ", ".join(f'"{field.name}" {field.sql_type}' for field in fields)
    connection.execute(f"CREATE TABLE {name} ({columns})")
    connection.execute(f"COMMENT ON TABLE {name} IS {_quote(doc)}")
    _comment_columns(connection, name, fields)


def _comment_columns(connection: duckdb.DuckDBPyConnection, table: str, fields: tuple[Field, ...]) -> None:
    for field in fields:
        connection.execute(f'COMMENT ON COLUMN {table}."{field.name}" IS {_quote(field.doc)}')


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
