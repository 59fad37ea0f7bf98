"""The tracks of GPU profiles: kernels, copies and fills, the calls that launched them, NVTX ranges, counters."""

from __future__ import annotations

from kvtrace.export.perfetto.source import CALL, KERNEL, Source
from kvtrace.export.perfetto.tracks import Node

PROFILES = (
    Source(
        "gpu_activity",
        f"""
        SELECT a.start_ns, a.end_ns, a.source_id, a.pid, a.device, a.stream,
            coalesce(n.short_name, a.kind::VARCHAR) AS name,
            CASE a.kind WHEN 'memcpy' THEN 'gpu_copy' ELSE concat('gpu_', a.kind) END AS category,
            a.activity_id, t.engine_id, t.step, t.method AS attribution, n.category AS purpose, l.layer,
            x.copy_kind AS direction, x.bytes,
            CASE WHEN s.step IS NOT NULL THEN a.activity_id * 8 + {KERNEL} END AS terminate,
            CASE WHEN t.call_id IS NOT NULL THEN a.activity_id * 8 + {CALL} END AS terminate_call
        FROM gpu_activity a
            LEFT JOIN kernel_name n USING (kernel_name_id)
            LEFT JOIN gpu_attribution t USING (activity_id)
            LEFT JOIN gpu_layer l USING (activity_id)
            LEFT JOIN gpu_transfer x USING (activity_id)
            LEFT JOIN step_schedule s ON s.engine_id = t.engine_id AND s.step = t.step
        ORDER BY a.start_ns, a.activity_id
        """,
        ("source_id", "pid", "device", "stream"),
        lambda names, key: (names.profiled(*key[:2]), Node(f"GPU {key[2]}"), Node(f"stream {key[3]}", key[3] or 0)),
    ),
    Source(
        "gpu_call",
        f"""
        WITH launched AS (
            SELECT call_id, list(activity_id * 8 + {CALL} ORDER BY activity_id) AS flow FROM gpu_attribution
            WHERE call_id IS NOT NULL GROUP BY call_id
        )
        SELECT c.* EXCLUDE (api, correlation), l.flow
        FROM gpu_call c LEFT JOIN launched l USING (call_id) ORDER BY c.start_ns, c.call_id
        """,
        ("source_id", "pid", "tid"),
        lambda names, key: (*names.thread(*key), Node("CUDA calls", 2)),
    ),
    Source(
        "nvtx",
        """
        SELECT n.start_ns, n.end_ns, n.source_id, n.pid, n.tid, coalesce(n.name, '(no text)') AS name, n.payload
        FROM nvtx n WHERE n.kind IN ('push_pop', 'start_end') ORDER BY n.start_ns, n.end_ns DESC
        """,
        ("source_id", "pid", "tid"),
        lambda names, key: (*names.thread(*key), Node("NVTX ranges", 1)),
    ),
    Source(
        "gpu_metric",
        """
        SELECT time_ns AS start_ns, source_id, type_id, metric, value FROM gpu_metric ORDER BY time_ns, metric_id
        """,
        ("source_id", "type_id", "metric"),
        lambda names, key: (Node(f"GPU metrics {key[1]}"),),
        counters=(("value", "", ""),),
    ),
)
