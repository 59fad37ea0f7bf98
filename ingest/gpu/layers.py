"""The layer of attention and KV-write kernels: by kvtrace's own GPU windows, else by counting them.

Counting: in a step (or, outside of steps, in one CUDA graph launch) a model with L layers writes KV L times and runs a
multiple of L attention kernels, in the order of the layers. L is what the worker recorded (`kv_layer`), else the number
of KV writes, else that of attention kernels. Counts that are no multiple of L say nothing, and give no layer.
"""

from __future__ import annotations

import duckdb

_KERNELS = """
CREATE OR REPLACE TEMP TABLE layer_kernel AS
SELECT a.activity_id, a.start_ns, (a.start_ns + a.end_ns) // 2 AS middle_ns, n.layer_role AS role, g.process_id,
    CASE WHEN n.layer_role = 'kv_write' THEN 'write' ELSE 'attention' END::e_window_kind AS kind,
    a.pid, a.device, t.step, CASE WHEN t.step IS NULL THEN t.call_id END AS launch, k.layers AS recorded_layers
FROM gpu_activity a
    JOIN kernel_name n USING (kernel_name_id)
    JOIN gpu_attribution t USING (activity_id)
    LEFT JOIN gpu_process g ON g.source_id = a.source_id AND g.pid = a.pid
    LEFT JOIN (SELECT process_id, count(DISTINCT layer) AS layers FROM kv_layer GROUP BY ALL) AS k
        ON k.process_id = g.process_id
WHERE a.source_id = {source} AND n.layer_role IS NOT NULL
"""

_BY_WINDOW = """
INSERT INTO gpu_layer
SELECT a.activity_id, w.layer, 'kv_window'
FROM (FROM layer_kernel WHERE process_id IS NOT NULL) AS a
    ASOF JOIN (FROM kv_window WHERE observed IS NOT false) AS w
    ON w.process_id = a.process_id AND w.kind = a.kind AND w.start_ns <= a.middle_ns
WHERE a.middle_ns <= w.end_ns
"""

_BY_ORDER = """
INSERT INTO gpu_layer
WITH counted AS (
    SELECT * FROM layer_kernel WHERE step IS NOT NULL OR launch IN (
        SELECT t.call_id FROM gpu_attribution t JOIN gpu_activity USING (activity_id) WHERE graph_node IS NOT NULL
    )
), unit AS (
    SELECT pid, device, step, launch, any_value(recorded_layers) AS recorded,
        count(*) FILTER (role = 'kv_write') AS writes, count(*) FILTER (role = 'attention') AS attentions
    FROM counted GROUP BY pid, device, step, launch
), sized AS (
    SELECT *, coalesce(recorded, nullif(writes, 0), attentions) AS layers FROM unit
), ranked AS (
    SELECT activity_id, pid, device, step, launch, role,
        count(*) FILTER (role = 'kv_write') OVER so_far AS written,
        count(*) FILTER (role = 'attention') OVER so_far AS attended
    FROM counted
    WINDOW so_far AS (
        PARTITION BY pid, device, step, launch ORDER BY start_ns, activity_id
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
), placed AS (
    SELECT r.activity_id, r.step, CASE
        WHEN role = 'kv_write' AND writes % layers = 0 THEN (written - 1) * layers // writes
        WHEN role <> 'kv_write' AND attended > 0 AND attentions % layers = 0
            THEN (attended - 1) * layers // attentions
        END AS layer
    FROM ranked r JOIN sized s ON r.pid IS NOT DISTINCT FROM s.pid AND r.device IS NOT DISTINCT FROM s.device
        AND r.step IS NOT DISTINCT FROM s.step AND r.launch IS NOT DISTINCT FROM s.launch
)
SELECT activity_id, layer, CASE WHEN step IS NULL THEN 'graph_order' ELSE 'step_order' END
FROM placed ANTI JOIN gpu_layer USING (activity_id)
WHERE layer IS NOT NULL
"""


def find_layers(connection: duckdb.DuckDBPyConnection, source_id: int) -> None:
    """Fill table `gpu_layer` for a source whose activities have their steps."""
    connection.execute(_KERNELS.format(source=source_id))
    connection.execute(_BY_WINDOW)
    connection.execute(_BY_ORDER)
    connection.execute("DROP TABLE layer_kernel")
