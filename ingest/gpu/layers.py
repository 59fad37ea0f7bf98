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
    ASOF JOIN kv_window w ON w.process_id = a.process_id AND w.kind = a.kind AND w.start_ns <= a.middle_ns
WHERE a.middle_ns <= w.end_ns
"""

_BY_ORDER = """
INSERT INTO gpu_layer
WITH counted AS (
    SELECT k.*,
        row_number() OVER (PARTITION BY pid, device, step, launch, role ORDER BY start_ns, activity_id) - 1 AS rank,
        count(*) OVER (PARTITION BY pid, device, step, launch, role) AS peers,
        count(*) FILTER (role = 'kv_write') OVER (PARTITION BY pid, device, step, launch) AS writes
    FROM layer_kernel k
    WHERE step IS NOT NULL OR launch IN (
        SELECT t.call_id FROM gpu_attribution t JOIN gpu_activity USING (activity_id) WHERE graph_node IS NOT NULL
    )
), numbered AS (
    SELECT *, coalesce(recorded_layers, nullif(writes, 0), peers) AS layers FROM counted
), placed AS (
    SELECT *, CASE WHEN role <> 'attention_combine' AND peers % layers = 0 THEN rank * layers // peers END AS layer
    FROM numbered
), filled AS (
    SELECT activity_id, step, CASE WHEN role = 'attention_combine'
        THEN last_value(CASE WHEN role = 'attention' THEN layer END IGNORE NULLS) OVER (
            PARTITION BY pid, device, step, launch ORDER BY start_ns, activity_id
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) ELSE layer END AS layer
    FROM placed
)
SELECT activity_id, layer, CASE WHEN step IS NULL THEN 'graph_order' ELSE 'step_order' END
FROM filled ANTI JOIN gpu_layer USING (activity_id)
WHERE layer IS NOT NULL
ORDER BY activity_id
"""


def find_layers(connection: duckdb.DuckDBPyConnection, source_id: int) -> None:
    """Fill table `gpu_layer` for a source whose activities have their steps."""
    connection.execute(_KERNELS.format(source=source_id))
    connection.execute(_BY_WINDOW)
    connection.execute(_BY_ORDER)
    connection.execute("DROP TABLE layer_kernel")
