"""Views over the GPU tables: kernels, copies, graph launches, the GPU's time by step, and KV windows on kernels."""

from __future__ import annotations

from kvtrace.events import Field, WindowKind
from kvtrace.ingest.gpu import enums
from kvtrace.ingest.gpu.columns import choice
from kvtrace.ingest.schema.declare import BIGINT, DOUBLE, INTEGER, TEXT, Table, column

_STEP_COLUMNS = (
    column("engine_id", INTEGER, "The engine whose step it is (derived)."),
    column("step", INTEGER, "Scheduler step it was launched for (derived)."),
)
_ATTRIBUTION = choice("attribution", enums.Attribution, "How the step was found.")
_PLACE = (
    column("source_id", INTEGER, "The file it was read from."),
    column("pid", INTEGER, "Process, as the profiler saw it."),
    column("device", BIGINT, "GPU, as the profiler numbers it."),
)

GPU_KERNEL = Table(
    "gpu_kernel",
    "Kernels with their names, steps and layers.",
    (
        column("activity_id", BIGINT, "Key, as in gpu_activity."),
        column("start_ns", BIGINT, "Start."),
        column("end_ns", BIGINT, "End."),
        column("duration_ns", BIGINT, "end_ns - start_ns."),
        *_PLACE,
        column("stream", BIGINT, "CUDA stream."),
        column("kernel_name_id", INTEGER, "Its name's key (`kernel_name.kernel_name_id`)."),
        column("name", TEXT, "The function's name alone."),
        column("demangled_name", TEXT, "The whole demangled name."),
        choice("category", enums.KernelCategory, "What it is for, by its name (derived)."),
        *_STEP_COLUMNS,
        _ATTRIBUTION,
        column("phase", TEXT, "What the step computed (recorded): decode, prefill or mixed; NULL without a recording."),
        column("layer", INTEGER, "Layer, if it is a kernel of one and the layer is known (derived)."),
        choice("layer_method", enums.LayerMethod, "How the layer was found."),
        choice("layer_role", enums.LayerRole, "Its part in the layer, by its name (derived)."),
        column("call_id", BIGINT, "The call that launched it."),
        column("graph_node", BIGINT, "CUDA graph node, if a graph launched it."),
    ),
    view="""
        SELECT a.activity_id, a.start_ns, a.end_ns, a.end_ns - a.start_ns AS duration_ns, a.source_id, a.pid, a.device,
            a.stream, a.kernel_name_id, n.short_name AS name, n.demangled_name, n.category, t.engine_id, t.step,
            t.method AS attribution,
            CASE WHEN s.decode_tokens = 0 AND s.prefill_tokens + s.chunked_prefill_tokens + s.resumed_tokens = 0
                THEN NULL
                WHEN s.prefill_tokens + s.chunked_prefill_tokens + s.resumed_tokens = 0 THEN 'decode'
                WHEN s.decode_tokens = 0 THEN 'prefill' WHEN s.step IS NOT NULL THEN 'mixed' END AS phase,
            l.layer, l.method AS layer_method, n.layer_role, t.call_id, a.graph_node
        FROM gpu_activity a
            LEFT JOIN kernel_name n USING (kernel_name_id)
            LEFT JOIN gpu_attribution t USING (activity_id)
            LEFT JOIN gpu_layer l USING (activity_id)
            LEFT JOIN step_schedule s ON s.engine_id = t.engine_id AND s.step = t.step
        WHERE a.kind = 'kernel'
    """,
)

GPU_COPY = Table(
    "gpu_copy",
    "Copies to, from and between GPUs.",
    (
        column("activity_id", BIGINT, "Key, as in gpu_activity."),
        column("start_ns", BIGINT, "Start."),
        column("end_ns", BIGINT, "End."),
        column("duration_ns", BIGINT, "end_ns - start_ns."),
        *_PLACE,
        column("stream", BIGINT, "CUDA stream."),
        choice("direction", enums.CopyKind, "From where to where."),
        choice("source_memory", enums.MemoryKind, "Memory it reads."),
        choice("target_memory", enums.MemoryKind, "Memory it writes."),
        column("bytes", BIGINT, "Bytes copied."),
        column("bytes_per_s", DOUBLE, "bytes / duration; NULL if the profiler saw no duration (derived)."),
        *_STEP_COLUMNS,
        _ATTRIBUTION,
        column("call_id", BIGINT, "The call that launched it."),
        column("process_id", INTEGER, "The worker whose transfer it was part of; NULL if of none (derived)."),
        column("transfer", BIGINT, "That transfer (`transfer.transfer`; derived)."),
    ),
    view="""
        SELECT a.activity_id, a.start_ns, a.end_ns, a.end_ns - a.start_ns AS duration_ns, a.source_id, a.pid, a.device,
            a.stream, m.copy_kind AS direction, m.source_memory, m.target_memory, m.bytes,
            m.bytes * 1e9 / nullif(a.end_ns - a.start_ns, 0) AS bytes_per_s, t.engine_id, t.step,
            t.method AS attribution, t.call_id, o.process_id, o.transfer
        FROM gpu_activity a
            LEFT JOIN gpu_transfer m USING (activity_id)
            LEFT JOIN gpu_attribution t USING (activity_id)
            LEFT JOIN gpu_copy_transfer o USING (activity_id)
        WHERE a.kind = 'memcpy'
    """,
)

GPU_GRAPH_LAUNCH = Table(
    "gpu_graph_launch",
    "Launches of CUDA graphs, with what the GPU did for each.",
    (
        column("call_id", BIGINT, "The call."),
        column("source_id", INTEGER, "The file it was read from."),
        column("pid", INTEGER, "Process."),
        column("tid", INTEGER, "Thread."),
        column("start_ns", BIGINT, "When the call began."),
        column("end_ns", BIGINT, "When it returned."),
        *_STEP_COLUMNS,
        column("activities", BIGINT, "Kernels, copies and fills of the graph's nodes (or 1, traced as a whole)."),
        column("gpu_start_ns", BIGINT, "Start of the first."),
        column("gpu_end_ns", BIGINT, "End of the last."),
    ),
    view="""
        SELECT c.call_id, c.source_id, c.pid, c.tid, c.start_ns, c.end_ns, any_value(t.engine_id) AS engine_id,
            any_value(t.step) AS step, count(a.activity_id) AS activities, min(a.start_ns) AS gpu_start_ns,
            max(a.end_ns) AS gpu_end_ns
        FROM gpu_call c LEFT JOIN gpu_attribution t USING (call_id) LEFT JOIN gpu_activity a USING (activity_id)
        WHERE c.name LIKE '%GraphLaunch%'
        GROUP BY ALL
    """,
)

_CATEGORY_SUMS = ",\n".join(
    f"coalesce(sum(length_ns) FILTER (category = '{category.name}'), 0)::BIGINT AS {category.name}_ns"
    for category in enums.KernelCategory
)

STEP_GPU = Table(
    "step_gpu",
    "A GPU's time in a scheduler step (derived): what was launched for the step, wherever it then ran.",
    (
        *_STEP_COLUMNS,
        *_PLACE,
        column("start_ns", BIGINT, "Start of the step's first activity."),
        column("end_ns", BIGINT, "End of its last."),
        column("busy_ns", BIGINT, "Time in which at least one of its activities ran."),
        column("idle_ns", BIGINT, "Time between its first and last in which none of them did."),
        column(
            "launch_gap_ns",
            BIGINT,
            "From the end of all earlier steps' activities to its first; 0 if they overlap, NULL for the first step.",
        ),
        column("kernels", BIGINT, "Kernels."),
        column(
            "inferred_kernels",
            BIGINT,
            "Kernels whose step follows from when they were launched or ran, not from a range around their launch.",
        ),
        column("kernel_ns", BIGINT, "Sum of their durations: the categories add up to it."),
        *(
            column(f"{category.name}_ns", BIGINT, f"Sum of the durations of {category.name} kernels.")
            for category in enums.KernelCategory
        ),
        column("memcpy_ns", BIGINT, "Sum of the copies' durations."),
        column("memset_ns", BIGINT, "Sum of the fills' durations."),
        column("graph_ns", BIGINT, "Sum of the durations of graphs that were traced as a whole."),
    ),
    view=f"""
        WITH work AS (
            SELECT t.engine_id, t.step, t.method, a.source_id, a.pid, a.device, a.kind,
                CASE WHEN a.kind = 'kernel' THEN coalesce(n.category, 'other') END AS category,
                a.start_ns, a.end_ns, a.end_ns - a.start_ns AS length_ns,
                max(a.end_ns) OVER (
                    PARTITION BY t.engine_id, t.step, a.source_id, a.pid, a.device ORDER BY a.start_ns, a.end_ns
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                ) AS covered_until_ns
            FROM gpu_activity a JOIN gpu_attribution t USING (activity_id)
                LEFT JOIN kernel_name n USING (kernel_name_id)
            WHERE t.step IS NOT NULL
        ), spans AS (
            SELECT engine_id, step, source_id, pid, device, min(start_ns) AS start_ns, max(end_ns) AS end_ns,
                sum(greatest(0, end_ns - greatest(start_ns, coalesce(covered_until_ns, start_ns))))::BIGINT AS busy_ns,
                count(*) FILTER (kind = 'kernel') AS kernels,
                count(*) FILTER (
                    kind = 'kernel' AND method IN ('after_range', 'other_thread', 'gpu_time', 'stream_order')
                ) AS inferred_kernels,
                coalesce(sum(length_ns) FILTER (kind = 'kernel'), 0)::BIGINT AS kernel_ns,
                {_CATEGORY_SUMS},
                coalesce(sum(length_ns) FILTER (kind = 'memcpy'), 0)::BIGINT AS memcpy_ns,
                coalesce(sum(length_ns) FILTER (kind = 'memset'), 0)::BIGINT AS memset_ns,
                coalesce(sum(length_ns) FILTER (kind = 'graph'), 0)::BIGINT AS graph_ns
            FROM work GROUP BY engine_id, step, source_id, pid, device
        )
        SELECT engine_id, step, source_id, pid, device, start_ns, end_ns, busy_ns,
            end_ns - start_ns - busy_ns AS idle_ns,
            CASE WHEN before_ns IS NOT NULL THEN start_ns - least(start_ns, before_ns) END AS launch_gap_ns,
            * EXCLUDE (engine_id, step, source_id, pid, device, start_ns, end_ns, busy_ns, before_ns)
        FROM (
            SELECT *, max(end_ns) OVER (
                PARTITION BY source_id, pid, device ORDER BY start_ns, end_ns
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS before_ns FROM spans
        )
    """,
)

KV_WINDOW_KERNEL = Table(
    "kv_window_kernel",
    "kvtrace's GPU windows laid on the profiler's kernels of the same step and layer: how well two clocks agree. A "
    "window that encloses its kernels has no negative delta.",
    (
        column("process_id", INTEGER, "The worker (`process.process_id`)."),
        column("engine_id", INTEGER, "The engine."),
        column("step", INTEGER, "Scheduler step."),
        column("layer", INTEGER, "Layer."),
        Field("kind", choice("kind", WindowKind, "").type, "What the layer did.", WindowKind),
        column("start_ns", BIGINT, "Start of the window (observed)."),
        column("end_ns", BIGINT, "End of the window (observed)."),
        column("kernels", BIGINT, "Kernels of the layer and kind."),
        column("kernel_start_ns", BIGINT, "Start of the first (observed)."),
        column("kernel_end_ns", BIGINT, "End of the last (observed)."),
        column("start_delta_ns", BIGINT, "kernel_start_ns - start_ns (derived)."),
        column("end_delta_ns", BIGINT, "end_ns - kernel_end_ns (derived)."),
    ),
    view="""
        WITH laid AS (
            SELECT p.process_id, t.engine_id, t.step, l.layer,
                CASE WHEN n.layer_role = 'kv_write' THEN 'write' ELSE 'attention' END::e_window_kind AS kind,
                count(*) AS kernels, min(a.start_ns) AS kernel_start_ns, max(a.end_ns) AS kernel_end_ns
            FROM gpu_layer l JOIN gpu_activity a USING (activity_id) JOIN gpu_attribution t USING (activity_id)
                JOIN kernel_name n USING (kernel_name_id)
                JOIN gpu_process p ON p.source_id = a.source_id AND p.pid = a.pid
            WHERE t.step IS NOT NULL
            GROUP BY ALL
        )
        SELECT w.process_id, w.engine_id, w.step, w.layer, w.kind, w.start_ns, w.end_ns, laid.kernels,
            laid.kernel_start_ns, laid.kernel_end_ns, laid.kernel_start_ns - w.start_ns AS start_delta_ns,
            w.end_ns - laid.kernel_end_ns AS end_delta_ns
        FROM kv_window w JOIN laid ON laid.process_id = w.process_id AND laid.engine_id = w.engine_id
            AND laid.step = w.step AND laid.layer = w.layer AND laid.kind = w.kind
        WHERE w.observed IS NOT false
    """,
)

VIEWS: tuple[Table, ...] = (GPU_KERNEL, GPU_COPY, GPU_GRAPH_LAUNCH, STEP_GPU, KV_WINDOW_KERNEL)
