"""The tables that profilers and other outside sources fill. Facts and attributions are kept in tables of their own."""

from __future__ import annotations

from kvtrace.ingest.gpu import enums
from kvtrace.ingest.gpu.columns import U8, UBIGINT, choice
from kvtrace.ingest.schema.declare import BIGINT, BOOLEAN, DOUBLE, INTEGER, SOURCE_ID, TEXT, Table, column

_START = column("start_ns", BIGINT, "Start.")
_END = column("end_ns", BIGINT, "End.")
_PID = column("pid", INTEGER, "Process id, as the profiler saw it.")
_TID = column("tid", INTEGER, "Thread id, as the profiler saw it.")
_NAME = column("name", TEXT, "Name.")
_DEVICE = column("device", BIGINT, "GPU, as the profiler numbers it.")
_CONTEXT = column("context", BIGINT, "CUDA context.")
_STREAM = column("stream", BIGINT, "CUDA stream.")
_HOST = column(
    "host",
    INTEGER,
    "Host or virtual machine of the process, or rank of merged traces, by the profiler's number; NULL if none is told. "
    "A process is (host, pid).",
)
_CORRELATION = column("correlation", BIGINT, "Pairs a call with what it made the GPU do, within a process.")

SOURCE = Table(
    "source",
    "The profiles and other files that were ingested beside or instead of a recording.",
    (
        column("source_id", INTEGER, "Key used by all other tables (from 1)."),
        choice("kind", enums.SourceKind, "What it is."),
        column("file", TEXT, "File name, without its directory."),
        column("version", TEXT, "Version of the program that wrote it, where the file says."),
        column("schema_version", TEXT, "Version of the file's own schema, where the file says."),
        column("session_start_ns", BIGINT, "UNIX time the file's own times count from; NULL if it has none."),
    ),
)

SOURCE_TABLE = Table(
    "source_table",
    "What each source holds and what was read of it.",
    (
        SOURCE_ID,
        column("source_table", TEXT, "The source's table, or kind of record."),
        column("rows", BIGINT, "Rows the source has (an Nsight export: by SQLite's own count)."),
        column("imported", BIGINT, "Rows read; NULL if the table is not one that kvtrace reads."),
        column("target", TEXT, "The table they went to; NULL if none."),
    ),
)

ALIGNMENT = Table(
    "alignment",
    "How a source's times became UNIX time, and how well that explains every reading there is.",
    (
        SOURCE_ID,
        choice("method", enums.AlignmentMethod, "What the clocks were compared by."),
        column("applied", BOOLEAN, "This is the alignment that was used; false: a check."),
        column("offset_ns", BIGINT, "UNIX time at `reference_ns` minus `reference_ns`."),
        column("reference_ns", BIGINT, "The source's time for which the offset holds exactly."),
        column("drift_ppb", DOUBLE, "How much faster UNIX time runs than the source's, in 1e-9."),
        column("readings", BIGINT, "Readings compared."),
        column("residual_p50_ns", BIGINT, "Median of what it leaves unexplained, without sign."),
        column("residual_p99_ns", BIGINT, "99th percentile of the same."),
        column("residual_max_ns", BIGINT, "The largest."),
    ),
)

GPU_ACTIVITY = Table(
    "gpu_activity",
    "What a GPU did, as the profiler recorded it: kernels, copies, fills, and CUDA graphs traced as a whole.",
    (
        column("activity_id", BIGINT, "Key (from 1)."),
        SOURCE_ID,
        choice("kind", enums.ActivityKind, "What it did."),
        _START,
        _END,
        _PID,
        _DEVICE,
        _CONTEXT,
        _STREAM,
        _CORRELATION,
        column("graph_node", BIGINT, "CUDA graph node, if a graph launched it."),
        column("graph", BIGINT, "CUDA graph, where the profiler tells."),
        column("kernel_name_id", INTEGER, "Kernel: its name (`kernel_name.kernel_name_id`)."),
        _HOST,
    ),
)

GPU_TRANSFER = Table(
    "gpu_transfer",
    "What copies and fills moved, as the profiler recorded it. One row an activity of kind memcpy or memset.",
    (
        column("activity_id", BIGINT, "The activity (`gpu_activity.activity_id`)."),
        column("bytes", BIGINT, "Bytes copied or filled."),
        choice("copy_kind", enums.CopyKind, "Copy: from where to where."),
        choice("source_memory", enums.MemoryKind, "Copy: memory it reads."),
        choice("target_memory", enums.MemoryKind, "Copy, fill: memory it writes."),
        column("source_device", BIGINT, "Copy: GPU it reads from, where the profiler tells."),
        column("target_device", BIGINT, "Copy: GPU it writes to, where the profiler tells."),
        column("fill_value", BIGINT, "Fill: the value."),
    ),
)

GPU_LAUNCH_SHAPE = Table(
    "gpu_launch_shape",
    "How kernels were launched. One row a kernel; of Nsight exports only with `kvtrace ingest --launch-shapes`.",
    (
        column("activity_id", BIGINT, "The kernel (`gpu_activity.activity_id`)."),
        column("grid_x", BIGINT, "Blocks, x."),
        column("grid_y", BIGINT, "Blocks, y."),
        column("grid_z", BIGINT, "Blocks, z."),
        column("block_x", BIGINT, "Threads a block, x."),
        column("block_y", BIGINT, "Threads a block, y."),
        column("block_z", BIGINT, "Threads a block, z."),
        column("registers", BIGINT, "Registers a thread."),
        column("static_shared_bytes", BIGINT, "Static shared memory a block."),
        column("dynamic_shared_bytes", BIGINT, "Dynamic shared memory a block."),
    ),
)

GPU_ATTRIBUTION = Table(
    "gpu_attribution",
    "Which call and which scheduler step an activity belongs to (derived). One row an activity.",
    (
        column("activity_id", BIGINT, "The activity (`gpu_activity.activity_id`)."),
        column("call_id", BIGINT, "The call that launched it (`gpu_call.call_id`), by process and correlation."),
        column("engine_id", INTEGER, "The engine whose step it is; NULL without a recording that fits."),
        column("step", INTEGER, "Scheduler step; NULL if none is known."),
        choice("method", enums.Attribution, "How the step was found."),
    ),
)

GPU_LAYER = Table(
    "gpu_layer",
    "The layer of attention and KV-write kernels (derived). Only kernels whose layer is known.",
    (
        column("activity_id", BIGINT, "The kernel (`gpu_activity.activity_id`)."),
        column("layer", INTEGER, "Index of the layer, as in kv_window."),
        choice("method", enums.LayerMethod, "How the layer was found."),
    ),
)

GPU_COPY_TRANSFER = Table(
    "gpu_copy_transfer",
    "The offload transfer that a copy was part of (derived): copies one after the other on a stream, within the "
    "transfer's time, that add up to its bytes.",
    (
        column("activity_id", BIGINT, "The copy (`gpu_activity.activity_id`)."),
        column("process_id", INTEGER, "The worker (`transfer.process_id`)."),
        column("engine_id", INTEGER, "The engine."),
        column("transfer", BIGINT, "The transfer (`transfer.transfer`)."),
    ),
)

KERNEL_NAME = Table(
    "kernel_name",
    "The kernels' names, and what they are for by their names (derived).",
    (
        column("kernel_name_id", INTEGER, "Key (from 1)."),
        SOURCE_ID,
        column("short_name", TEXT, "The function's name alone."),
        column("demangled_name", TEXT, "The whole demangled name."),
        column("mangled_name", TEXT, "The mangled name, where the profiler kept it."),
        choice("category", enums.KernelCategory, "What it is for, by the first rule that its name meets."),
        column("category_rule", TEXT, "That rule, a regular expression; NULL if none was met."),
        choice("layer_role", enums.LayerRole, "Its part in a layer, if it has one."),
    ),
)

GPU_CALL = Table(
    "gpu_call",
    "Calls of the CUDA runtime and driver.",
    (
        column("call_id", BIGINT, "Key (from 1)."),
        SOURCE_ID,
        choice("api", enums.CallApi, "The API."),
        _START,
        _END,
        _PID,
        _TID,
        _NAME,
        _CORRELATION,
        column("return_value", BIGINT, "What it returned; 0 is success."),
        _HOST,
    ),
)

GPU_SYNC = Table(
    "gpu_sync",
    "Waits for a GPU: for an event, a stream or all of it.",
    (
        SOURCE_ID,
        column(
            "sync_type",
            BIGINT,
            "The profiler's own code. Its meaning changed between versions; the call of that correlation says more.",
        ),
        _START,
        _END,
        _PID,
        _DEVICE,
        _CONTEXT,
        _STREAM,
        _CORRELATION,
        column("event", BIGINT, "CUDA event, if one was waited for."),
    ),
)

GRAPH_NODE = Table(
    "graph_node",
    "CUDA graph nodes as they were created or copied.",
    (
        SOURCE_ID,
        column("time_ns", BIGINT, "When."),
        _PID,
        _TID,
        _NAME,
        column("graph_node", BIGINT, "The node, as in gpu_activity."),
        column("original_graph_node", BIGINT, "The node it is a copy of."),
    ),
)

NVTX = Table(
    "nvtx",
    "NVTX ranges and marks, of the program, of libraries and of kvtrace itself (domain `kvtrace`).",
    (
        SOURCE_ID,
        choice("kind", enums.NvtxKind, "What it is."),
        _START,
        column("end_ns", BIGINT, "End; NULL for what has none."),
        _PID,
        _TID,
        column("domain_id", BIGINT, "Its domain, within the process; the record of kind `domain` has its name."),
        column("name", TEXT, "Its text."),
        column("payload", BIGINT, "Integer payload (kvtrace: the step)."),
        column("payload_real", DOUBLE, "Floating-point payload."),
        column("category", BIGINT, "NVTX category."),
    ),
)

CPU_OP = Table(
    "cpu_op",
    "What PyTorch's profiler recorded on the host: operators, annotations, Python functions.",
    (
        SOURCE_ID,
        column("category", TEXT, "PyTorch's own: cpu_op, user_annotation, python_function, ..."),
        _START,
        _END,
        _PID,
        _TID,
        _NAME,
        column("external_id", BIGINT, "PyTorch's External id."),
    ),
)

OS_CALL = Table(
    "os_call",
    "Calls of the operating system's libraries (Nsight's OS runtime trace).",
    (
        SOURCE_ID,
        _START,
        _END,
        _PID,
        _TID,
        _NAME,
        column("return_value", BIGINT, "What it returned."),
        column("nesting", BIGINT, "How deep it was called from another such call."),
    ),
)

GPU_METRIC = Table(
    "gpu_metric",
    "Samples of the GPU's counters.",
    (
        SOURCE_ID,
        column("time_ns", BIGINT, "When it was sampled."),
        column("type_id", BIGINT, "The sampled GPU and counter set, as the profiler numbers them."),
        column("metric_id", BIGINT, "The counter within it."),
        column("metric", TEXT, "The counter's name."),
        column("value", BIGINT, "Its value."),
    ),
)

GPU_DEVICE = Table(
    "gpu_device",
    "The GPUs of the profiled host.",
    (
        SOURCE_ID,
        column("gpu_id", BIGINT, "The profiler's number."),
        column("cuda_id", BIGINT, "CUDA's number, where the profiler keeps one."),
        _NAME,
        column("chip", TEXT, "Chip."),
        column("bus", TEXT, "PCI address."),
        column("uuid", TEXT, "UUID."),
        column("multiprocessors", BIGINT, "Streaming multiprocessors."),
        column("memory_bytes", BIGINT, "Memory."),
        column("memory_bandwidth", BIGINT, "Memory bandwidth, bytes a second."),
        column("compute_capability", TEXT, "Compute capability."),
    ),
)

GPU_VISIBLE_DEVICE = Table(
    "gpu_visible_device",
    "Which GPU a process knows by which number.",
    (
        SOURCE_ID,
        _PID,
        column("cuda_id", BIGINT, "CUDA's number in that process."),
        column("gpu_id", BIGINT, "The profiler's number (`gpu_device.gpu_id`)."),
    ),
)

GPU_CONTEXT = Table(
    "gpu_context",
    "CUDA contexts.",
    (SOURCE_ID, _PID, _DEVICE, _CONTEXT, column("null_stream", BIGINT, "Its default stream.")),
)

GPU_STREAM = Table(
    "gpu_stream",
    "CUDA streams that were created.",
    (
        SOURCE_ID,
        _PID,
        _CONTEXT,
        _STREAM,
        column("priority", BIGINT, "Priority; lower runs first."),
        column("flag", BIGINT, "CUPTI's stream flag: 1 default, 2 non-blocking, 3 null stream."),
    ),
)

PROFILED_PROCESS = Table("profiled_process", "Processes that the profiler names.", (SOURCE_ID, _PID, _NAME, _HOST))

GPU_PROCESS = Table(
    "gpu_process",
    "Processes that used a GPU in a profile, and the recorded process each one is (derived).",
    (
        SOURCE_ID,
        _PID,
        column("process_id", INTEGER, "The recorded process (`process.process_id`); NULL if none fits."),
        column("matched_by", TEXT, "pid, or only_one: neither side has another to choose from."),
    ),
)

PROFILED_THREAD = Table("profiled_thread", "Threads that the profiler names.", (SOURCE_ID, _PID, _TID, _NAME))

KV_EVENT = Table(
    "kv_event",
    "KV-cache events that vLLM itself published, one row a block: an independent check of block_event.",
    (
        SOURCE_ID,
        column("sequence", BIGINT, "vLLM's sequence number of the batch."),
        column("position", INTEGER, "The event's place in the batch."),
        column("time_ns", BIGINT, "When vLLM made the batch."),
        choice("op", enums.KvEventOp, "What happened."),
        column("block_hash", UBIGINT, "Low 64 bits of the block's hash, as in block_event; NULL with cleared."),
        column("parent_hash", UBIGINT, "With stored: the block before it."),
        column("block_size_tokens", INTEGER, "With stored: tokens a block."),
        column("medium", TEXT, "Where the block is, as vLLM calls it: GPU, CPU, ..."),
        column("kv_group", U8, "KV cache group, where vLLM tells."),
        column("dp_rank", INTEGER, "Data-parallel rank of the engine."),
    ),
)

TABLES: tuple[Table, ...] = tuple(table for table in list(globals().values()) if isinstance(table, Table))
"""All that are declared above."""
