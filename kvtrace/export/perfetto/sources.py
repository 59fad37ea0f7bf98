"""What is drawn: one SELECT a source, in the order of `start_ns`.

Columns with a meaning of their own are `start_ns`, `end_ns` (NULL: it had not ended when the recording did), `name`,
`category`, the source's keys, and flows: `flow*` starts arrows and `terminate*` ends them, a number or a list of them each.
Every other column is shown as an argument. An arrow's number is the row's key times 8 plus its kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvtrace.export.perfetto.tracks import Names, Node, Path
from kvtrace.queries import find

Place = Callable[[Names, tuple[Any, ...]], Path]

_SHARE, _KERNEL, _FORWARD, _WINDOW, _CALL = 1, 2, 3, 4, 5
"""Kinds of arrows: request's share -> step, step -> kernel, step -> forward pass, step -> KV window, call -> kernel."""


@dataclass(frozen=True)
class Source:
    """Slices or counters of one SELECT.

    Args:
        name: What its rows are counted under, and the category of its slices.
        sql: The SELECT.
        keys: Columns that tell tracks apart.
        place: The track of a key, from the root.
        counters: For counters: columns, their tracks' names (empty: the last key) and units. Empty for slices.
        owns_lanes: The last key has a lane for itself while it lasts: a request has one for what belongs to it.
        in_lanes: Its slices lie in the lane that the last key owns.
        gap_ns: Least time between two slices of a lane.
    """

    name: str
    sql: str
    keys: tuple[str, ...]
    place: Place
    counters: tuple[tuple[str, str, str], ...] = ()
    owns_lanes: bool = False
    in_lanes: bool = False
    gap_ns: int = 0


def _process(rank: int, *path: str) -> Place:
    """A track of the process that the key begins with."""
    return lambda names, key: (names.process(key[0]), *(Node(name, rank) for name in path))


def _named(rank: int, group: str) -> Place:
    """A track in a group of the process that the key begins with; the key ends with its name."""
    return lambda names, key: (names.process(key[0]), Node(group, rank), Node(str(key[-1])))


def _lane(*path: str) -> Place:
    """A request's lane; the key ends with its number."""
    return lambda names, key: (
        names.process(key[0]),
        Node("requests", 2),
        Node(f"lane {key[-1] + 1}", key[-1]),
        *map(Node, path),
    )


_STATES = find("request-states").sql({})
_UTILISATION = find("kv-utilisation").sql({"bucket_ms": "0", "engine": None})

REQUESTS = Source(
    "request",
    f"""
    WITH state AS ({_STATES}),
    life AS (
        SELECT request, min(start_ns) AS start_ns, max(end_ns) AS end_ns, bool_or(end_ns IS NULL) AS open
        FROM state GROUP BY request
    ),
    share AS (
        SELECT q.request, min(s.start_ns) AS start_ns
        FROM step_request q JOIN step_schedule s USING (engine_id, step) GROUP BY q.request
    ),
    miss AS (
        SELECT request, arg_min(verdict, time_ns) AS miss_verdict, arg_min(why, time_ns) AS miss_why,
            arg_min(avoidable_tokens, time_ns) AS avoidable_tokens, arg_min(avoidable_ns, time_ns) AS avoidable_ns
        FROM prefix_miss WHERE NOT resumed GROUP BY request
    )
    SELECT least(l.start_ns, h.start_ns) AS start_ns, CASE WHEN NOT l.open THEN l.end_ns END AS end_ns,
        coalesce(r.external_id, r.internal_id, 'request ' || r.request) AS name,
        r.*, m.miss_verdict, m.miss_why, m.avoidable_tokens, m.avoidable_ns
    FROM request r JOIN life l USING (request) LEFT JOIN share h USING (request) LEFT JOIN miss m USING (request)
    WHERE r.engine_id IS NOT NULL
    ORDER BY 1, r.request
    """,
    ("engine_id", "request"),
    _lane(),
    owns_lanes=True,
    # States lie inside their request: at one time, the end of one request and the start of the next would mix.
    gap_ns=1,
)

SOURCES = (
    REQUESTS,
    Source(
        "request_state",
        f"SELECT start_ns, end_ns, state AS name, engine_id, request FROM ({_STATES}) WHERE engine_id IS NOT NULL "
        "ORDER BY start_ns, request",
        ("engine_id", "request"),
        _lane(),
        in_lanes=True,
    ),
    Source(
        "step_request",
        f"""
        SELECT s.start_ns, s.end_ns, q.phase::VARCHAR AS name, q.* EXCLUDE (phase), q.rowid * 8 + {_SHARE} AS flow
        FROM step_request q JOIN step s USING (engine_id, step)
        ORDER BY s.start_ns, q.rowid
        """,
        ("engine_id", "request"),
        _lane("in steps"),
        in_lanes=True,
    ),
    Source(
        "step",
        f"""
        WITH share AS (
            SELECT engine_id, step, list(rowid * 8 + {_SHARE}) AS flows FROM step_request GROUP BY ALL
        ),
        target AS (
            SELECT engine_id, step, activity_id * 8 + {_KERNEL} AS flow FROM gpu_attribution
            UNION ALL SELECT engine_id, step, rowid * 8 + {_FORWARD} FROM forward
            UNION ALL SELECT engine_id, step, rowid * 8 + {_WINDOW} FROM kv_window
        ),
        targets AS (
            SELECT engine_id, step, list(flow) AS flows FROM target WHERE step IS NOT NULL GROUP BY ALL
        )
        SELECT s.*, h.flows AS terminate, t.flows AS flow, concat('step ', s.step, ': ', concat_ws(', ',
            CASE WHEN prefill_requests > 0 THEN
                concat(prefill_requests, ' prefill (', prefill_tokens, ' tokens)') END,
            CASE WHEN chunked_prefill_requests > 0 THEN
                concat(chunked_prefill_requests, ' chunked prefill (', chunked_prefill_tokens, ' tokens)') END,
            CASE WHEN resumed_requests > 0 THEN
                concat(resumed_requests, ' resumed (', resumed_tokens, ' tokens)') END,
            CASE WHEN decode_requests > 0 THEN
                concat(decode_requests, ' decode (', decode_tokens, ' tokens)') END)) AS name
        FROM step s
        LEFT JOIN share h ON h.engine_id = s.engine_id AND h.step = s.step
        LEFT JOIN targets t ON t.engine_id = s.engine_id AND t.step = s.step
        ORDER BY s.start_ns, s.engine_id
        """,
        ("engine_id",),
        _process(1, "steps"),
    ),
    Source(
        "kv_utilisation",
        f"""
        SELECT u.time_ns AS start_ns, s.engine_id, u.used_blocks::BIGINT AS used_blocks,
            u.cached_free_blocks::BIGINT AS cached_free_blocks, u.empty_free_blocks::BIGINT AS empty_free_blocks,
            CASE WHEN u.cached_free_blocks IS NULL THEN s.free_blocks END AS free_blocks,
            s.running, s.waiting, s.budget_tokens - s.budget_left_tokens AS budget_used_tokens
        FROM ({_UTILISATION}) u JOIN step_schedule s USING (engine_id, step)
        ORDER BY start_ns, s.engine_id
        """,
        ("engine_id",),
        _process(3),
        counters=(
            ("used_blocks", "KV blocks in use", "blocks"),
            ("cached_free_blocks", "KV blocks free, cached", "blocks"),
            ("empty_free_blocks", "KV blocks free, empty", "blocks"),
            ("free_blocks", "KV blocks free", "blocks"),
            ("running", "running requests", "requests"),
            ("waiting", "waiting requests", "requests"),
            ("budget_used_tokens", "token budget used", "tokens"),
        ),
    ),
    Source(
        "forward",
        f"""
        SELECT f.*, concat('forward ', f.step) AS name, f.rowid * 8 + {_FORWARD} AS terminate
        FROM forward f ORDER BY f.start_ns, f.rowid
        """,
        ("process_id",),
        _process(4, "forward passes (host)"),
    ),
    Source(
        "kv_window",
        f"""
        SELECT w.* EXCLUDE (kind), w.kind::VARCHAR AS name, w.rowid * 8 + {_WINDOW} AS terminate
        FROM kv_window w ORDER BY w.start_ns, w.rowid
        """,
        ("process_id", "layer"),
        lambda names, key: (names.process(key[0]), Node("KV windows (GPU)", 5), Node(f"layer {key[1]}", key[1])),
    ),
    Source(
        "pin",
        """
        SELECT start_ns, end_ns, engine_id, cause::VARCHAR AS name, pin, request, requested_ttl_ns, end_reason,
            count(*) AS blocks
        FROM pin GROUP BY ALL ORDER BY start_ns, pin, end_ns
        """,
        ("engine_id", "name"),
        _named(6, "pins"),
    ),
    Source(
        "transfer",
        """
        SELECT coalesce(started_ns, submitted_ns) AS start_ns, finished_ns AS end_ns,
            concat(direction, ' ', from_tier, ' to ', to_tier) AS name, * EXCLUDE (finished_ns)
        FROM transfer ORDER BY 1, transfer
        """,
        ("process_id", "name"),
        _named(7, "transfers"),
    ),
    Source(
        "transfer_rate",
        """
        WITH span AS (
            SELECT process_id, concat(direction, ' ', from_tier, ' to ', to_tier) AS path,
                coalesce(started_ns, submitted_ns) AS start_ns, finished_ns AS end_ns, bytes
            FROM transfer WHERE finished_ns > coalesce(started_ns, submitted_ns) AND bytes > 0
        ), change AS (
            SELECT process_id, path, start_ns, bytes * 1e9 / (end_ns - start_ns) AS rate, 1 AS transfers FROM span
            UNION ALL SELECT process_id, path, end_ns, -bytes * 1e9 / (end_ns - start_ns), -1 FROM span
        ), moment AS (
            SELECT process_id, path, start_ns, sum(rate) AS rate, sum(transfers) AS transfers FROM change GROUP BY ALL
        )
        SELECT process_id, path, start_ns, CASE WHEN sum(transfers) OVER past = 0 THEN 0
            ELSE round(sum(rate) OVER past)::BIGINT END AS rate
        FROM moment WINDOW past AS (PARTITION BY process_id, path ORDER BY start_ns) ORDER BY start_ns, process_id, path
        """,
        ("process_id", "path"),
        _process(7, "transfers"),
        counters=(("rate", "", "bytes/s"),),
    ),
    Source(
        "gpu_activity",
        f"""
        SELECT a.start_ns, a.end_ns, a.source_id, a.pid, a.device, a.stream, coalesce(n.short_name, a.kind::VARCHAR) AS name,
            CASE a.kind WHEN 'memcpy' THEN 'gpu_copy' ELSE concat('gpu_', a.kind) END AS category,
            a.activity_id, t.engine_id, t.step, t.method AS attribution, n.category AS purpose, l.layer,
            x.copy_kind AS direction, x.bytes,
            CASE WHEN s.step IS NOT NULL THEN a.activity_id * 8 + {_KERNEL} END AS terminate,
            CASE WHEN t.call_id IS NOT NULL THEN a.activity_id * 8 + {_CALL} END AS terminate_call
        FROM gpu_activity a
            LEFT JOIN kernel_name n USING (kernel_name_id)
            LEFT JOIN gpu_attribution t USING (activity_id)
            LEFT JOIN gpu_layer l USING (activity_id)
            LEFT JOIN gpu_transfer x USING (activity_id)
            LEFT JOIN step_schedule s ON s.engine_id = t.engine_id AND s.step = t.step
        ORDER BY a.start_ns, a.activity_id
        """,
        ("source_id", "pid", "device", "stream"),
        lambda names, key: (names.profiled(*key[:2]), Node(f"GPU {key[2]}", 8), Node(f"stream {key[3]}", key[3] or 0)),
    ),
    Source(
        "gpu_call",
        f"""
        WITH launched AS (
            SELECT call_id, list(activity_id * 8 + {_CALL}) AS flow FROM gpu_attribution
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
