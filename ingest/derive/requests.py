"""Derives table `request` from the events, and counts how many rows each join of the trace matches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from kvtrace.format.segment import LARGEST_CLOCK_NS
from kvtrace.ingest import columns


class Join(NamedTuple):
    """Rows of `left` that look for a partner in `right` by `keys`."""

    left: str
    right: str
    keys: tuple[str, ...]
    where: str = "true"

    @property
    def name(self) -> str:
        """Return the join's name in the summary, `LEFT -> RIGHT`."""
        return f"{self.left} -> {self.right}"


class JoinCount(NamedTuple):
    """Result of a join."""

    name: str
    matched: int
    unmatched: int


_NO_PARENT = "request NOT IN (SELECT parent FROM request_sample)"
_NO_SAMPLE = "request NOT IN (SELECT request FROM request_sample)"
"""With n > 1, neither the client's request nor its samples have a partner in the other's table, and none is missing."""

JOINS = (
    Join("step_update", "step_schedule", ("engine_id", "step")),
    Join("step_request", "step_schedule", ("engine_id", "step")),
    Join("forward", "step_schedule", ("engine_id", "step")),
    Join("request_arrival", "request_queued", ("request",), _NO_PARENT),
    Join("request_queued", "request_arrival", ("request",), _NO_SAMPLE),
    Join("request_event", "request_queued", ("engine_id", "request")),
    Join("step_request", "request_queued", ("engine_id", "request")),
    Join("prefix_lookup", "request_queued", ("engine_id", "request")),
    Join("request_hash", "prefix_lookup", ("engine_id", "request", "step")),
    Join("block_table", "request_queued", ("engine_id", "request")),
    Join("transfer_submit", "step_schedule", ("engine_id", "step")),
    Join("transfer_block", "transfer_submit", ("engine_id", "transfer")),
    Join("transfer_end", "transfer_submit", ("process_id", "transfer")),
    Join("pin_end", "pin_start", ("engine_id", "pin", "block_id")),
    Join("block_event", "request_queued", ("engine_id", "request"), "request IS NOT NULL"),
)

_INSERT_REQUESTS = """
INSERT INTO request
WITH arrival AS (
    SELECT request, arg_min(external_id, time_ns) AS external_id FROM request_arrival GROUP BY request
), owner AS (
    SELECT request, arg_min(tenant, time_ns) AS tenant, arg_min(lora, time_ns) AS lora
    FROM request_owner GROUP BY request
), adapter AS (
    SELECT request, any_value(lora) AS lora FROM request_key GROUP BY request
), queued AS (
    SELECT DISTINCT ON (request) * FROM request_queued WHERE request IS NOT NULL ORDER BY request, time_ns
), life AS (
    SELECT request,
        arg_min(engine_id, time_ns) AS engine_id,
        max(output_tokens) FILTER (op <> 'finish' OR output_tokens > 0) AS output_tokens,
        arg_min(local_cached_tokens, time_ns) FILTER (op = 'schedule') AS local_cached_tokens,
        arg_min(external_cached_tokens, time_ns) FILTER (op = 'schedule') AS external_cached_tokens,
        count(*) FILTER (op = 'preempt') AS preemptions,
        min(time_ns) FILTER (op = 'schedule') AS scheduled_ns,
        min(time_ns) FILTER (op = 'first_token') AS first_token_ns,
        max(time_ns) FILTER (op = 'finish') AS finished_ns,
        arg_max(reason, time_ns) FILTER (op = 'finish') AS finish_reason
    FROM request_event WHERE request IS NOT NULL GROUP BY request
)
SELECT request, coalesce(queued.engine_id, life.engine_id), known.internal_id, arrival.external_id, queued.session,
    queued.turn, owner.tenant, coalesce(owner.lora, adapter.lora), queued.priority, queued.prompt_tokens,
    queued.max_tokens, life.output_tokens, life.local_cached_tokens, life.external_cached_tokens,
    coalesce(life.preemptions, 0), nullif(queued.arrival_ns, 0), queued.time_ns, life.scheduled_ns, life.first_token_ns,
    life.finished_ns, life.finish_reason
FROM known_request AS known
    LEFT JOIN arrival USING (request) LEFT JOIN owner USING (request) LEFT JOIN queued USING (request)
    LEFT JOIN adapter USING (request) LEFT JOIN life USING (request)
ORDER BY request
"""

_OWN_SAMPLES = """
UPDATE request SET tenant = client.tenant, lora = coalesce(client.lora, request.lora)
FROM request_sample s JOIN request client ON client.request = s.parent
WHERE s.request = request.request AND EXISTS (FROM request_owner)
"""
"""Samples of a request with n > 1 belong to their client."""


def insert_requests(connection: duckdb.DuckDBPyConnection, internal_ids: Sequence[str]) -> None:
    """Fill table `request`: one row a key, in order of keys (from 1)."""
    connection.register("known_request", _keys(internal_ids))
    try:
        connection.execute(_INSERT_REQUESTS)
        connection.execute(_OWN_SAMPLES)
    finally:
        connection.unregister("known_request")


def _keys(internal_ids: Sequence[str]) -> pa.RecordBatchReader:
    keys = np.arange(1, len(internal_ids) + 1, dtype=np.int32)
    arrays = {
        "request": columns.numbers(keys, pa.int32()),
        "internal_id": columns.texts(internal_ids),
    }
    batch = pa.RecordBatch.from_pydict(arrays)
    # A reader, not a table: registering a table makes DuckDB import pyarrow.dataset and pandas, which takes a second.
    return pa.RecordBatchReader.from_batches(batch.schema, [batch])


def count_joins(connection: duckdb.DuckDBPyConnection) -> list[JoinCount]:
    """Count what each join matches, keep it in table `join_count`, and return it."""
    counts = []
    for join in JOINS:
        rows = f"FROM {join.left} AS l WHERE {join.where}"
        total = _number(connection, f"SELECT count(*) {rows}")
        keys = " AND ".join(f"l.{key} = r.{key}" for key in join.keys)
        partner = f"SELECT 1 FROM {join.right} AS r WHERE {keys}"
        matched = _number(connection, f"SELECT count(*) {rows} AND EXISTS ({partner})")
        counts.append(JoinCount(join.name, matched, total - matched))
        connection.execute("INSERT INTO join_count VALUES (?, ?, ?)", list(counts[-1]))
    return counts


def _number(connection: duckdb.DuckDBPyConnection, sql: str) -> int:
    row = connection.execute(sql).fetchone()
    return int(row[0]) if row else 0


def insert_windows_between(connection: duckdb.DuckDBPyConnection) -> None:
    """Fill `kv_window` of layers that have no stamps in passes with CUDA graphs.

    In the time between two layers with stamps, the layers between them take turns with what is computed between layers:
    each as long as the step's layers with stamps in the median, and the rest evenly. That holds as far as all these
    layers take as long as each other. If a layer with stamps took longer, because another process had the GPU for some
    time, that moves no window, and derived windows never overlap others.
    """
    connection.execute(
        """
        INSERT INTO kv_window BY NAME
        WITH untimed AS (
            FROM kv_layer WHERE timed = 'outside_graphs'
        ), own AS (  -- a damaged one may have any times
            FROM kv_window SEMI JOIN untimed USING (process_id)
            WHERE start_ns >= 0 AND end_ns BETWEEN start_ns AND $latest_ns
        ), timed AS (
            SELECT process_id, engine_id, step, layer, min(start_ns) AS start_ns, max(end_ns) AS end_ns
            FROM own GROUP BY ALL
        ), pair AS (
            SELECT process_id, engine_id, step, layer, lead(layer) OVER later - layer AS layers,
                end_ns AS since_ns, greatest(0, lead(start_ns) OVER later - end_ns) AS between_ns,
                quantile_disc(end_ns - start_ns, 0.5) OVER (PARTITION BY process_id, engine_id, step) AS layer_ns
            FROM timed WINDOW later AS (PARTITION BY process_id, engine_id, step ORDER BY layer)
        ), shape AS (
            SELECT process_id, engine_id, step, kind,
                quantile_disc(w.start_ns - t.start_ns, 0.5) AS start_ns,
                quantile_disc(w.end_ns - t.start_ns, 0.5) AS end_ns
            FROM own w JOIN timed t USING (process_id, engine_id, step, layer) GROUP BY ALL
        ), turn AS (
            SELECT *, least(layer_ns, between_ns // (layers - 1)) AS turn_ns,
                between_ns - (layers - 1) * turn_ns AS rest_ns
            FROM pair WHERE layers > 1
        ), derived AS (
            SELECT t.process_id, t.engine_id, t.step, u.layer, layer_ns, turn_ns,
                since_ns + (rest_ns::HUGEINT * (u.layer - t.layer) // layers)::BIGINT
                    + turn_ns * (u.layer - t.layer - 1) AS at_ns
            FROM turn t JOIN untimed u
                ON u.process_id = t.process_id AND u.layer > t.layer AND u.layer < t.layer + t.layers
        )
        SELECT d.process_id, d.engine_id, d.step, s.kind, d.layer, false AS observed,
            at_ns + (s.start_ns::HUGEINT * turn_ns // greatest(1, layer_ns))::BIGINT AS start_ns,
            at_ns + (s.end_ns::HUGEINT * turn_ns // greatest(1, layer_ns))::BIGINT AS end_ns
        FROM derived d JOIN shape s USING (process_id, engine_id, step)
        ORDER BY d.process_id, d.step, d.layer, s.kind
        """,
        {"latest_ns": LARGEST_CLOCK_NS},
    )


def insert_writes_before_attention(connection: duckdb.DuckDBPyConnection) -> None:
    """Fill `kv_window` with writes that had no stamps, of layers whose attention is observed in the kernels.

    In passes with CUDA graphs some layers' writes have stamps. Another layer's write is as long as theirs in the median
    and as far ahead of its attention, but begins no sooner than the attention of the layer before has ended.
    """
    connection.execute(
        """
        INSERT INTO kv_window BY NAME
        WITH untimed AS (
            FROM kv_layer WHERE timed = 'outside_graphs' AND in_kernel = 'attention'
        ), own AS (  -- a damaged one may have any times
            FROM kv_window WHERE process_id IN (SELECT process_id FROM untimed)
                AND start_ns >= 0 AND end_ns BETWEEN start_ns AND $latest_ns
        ), attention AS (
            SELECT process_id, engine_id, step, layer, min(start_ns) AS start_ns, max(end_ns) AS end_ns
            FROM own WHERE kind = 'attention' GROUP BY ALL
        ), written AS (
            FROM own WHERE kind = 'write'
        ), shape AS (
            SELECT process_id, engine_id, step, quantile_disc(a.start_ns - w.start_ns, 0.5) AS ahead_ns,
                quantile_disc(w.end_ns - w.start_ns, 0.5) AS write_ns
            FROM attention a JOIN written w USING (process_id, engine_id, step, layer) GROUP BY ALL
        ), placed AS (
            SELECT *, greatest(start_ns - ahead_ns, coalesce(lag(end_ns) OVER before, start_ns - ahead_ns)) AS at_ns
            FROM attention JOIN shape USING (process_id, engine_id, step)
            WINDOW before AS (PARTITION BY process_id, engine_id, step ORDER BY layer)
        )
        SELECT p.process_id, p.engine_id, p.step, 'write' AS kind, p.layer, false AS observed, at_ns AS start_ns,
            greatest(at_ns, least(at_ns + write_ns, p.start_ns)) AS end_ns
        FROM placed p SEMI JOIN untimed USING (process_id, layer)
            ANTI JOIN written USING (process_id, engine_id, step, layer)
        ORDER BY p.process_id, p.step, p.layer
        """,
        {"latest_ns": LARGEST_CLOCK_NS},
    )


def insert_tile_windows(connection: duckdb.DuckDBPyConnection, since_process: int = 1) -> None:
    """Fill `kv_window` of workers, from a key on, that recorded tiles: from a layer's first program to its last."""
    connection.execute(
        f"""
        INSERT INTO kv_window BY NAME
        SELECT process_id, engine_id, step, layer, 'attention' AS kind, true AS observed,
            min(start_ns) AS start_ns, max(end_ns) AS end_ns
        FROM gpu_program WHERE process_id >= {since_process} GROUP BY ALL
        UNION ALL BY NAME
        SELECT process_id, engine_id, step, layer, 'write' AS kind, true AS observed,
            min(start_ns) AS start_ns, max(v_ns) AS end_ns
        FROM gpu_write WHERE process_id >= {since_process} GROUP BY ALL
        ORDER BY process_id, step, layer, kind
        """
    )
