"""The ledger of transfers and pins: connectors, transfers, pins, and what held each block when."""

from __future__ import annotations

from kvtrace.events import Direction, Field, PinCause, PinEnd, Tier, Type
from kvtrace.ingest.schema.declare import BIGINT, INTEGER, TEXT, Table, column

_BOOLEAN = Type("bool", "", "BOOLEAN")
_ENUM = Type("enum", "", "ENUM")

CONNECTOR = Table(
    "connector",
    "The KV connectors of each process, and how far kvtrace could look into them.",
    (
        column("process_id", INTEGER, "The process."),
        column("part", INTEGER, "0: the engine's connector; from 1: the parts of a MultiConnector, in order."),
        column("connector", TEXT, "Its class."),
        column("role", TEXT, "scheduler or worker: vLLM makes one for each side."),
        column("recorded", TEXT, "in detail: down to the transfer and the block; generically: by vLLM's interface."),
        column("tier", TEXT, "The tier its scheduler's side manages."),
        column("capacity_blocks", BIGINT, "Blocks or chunks that tier has room for."),
        column("blocks_per_chunk", INTEGER, "GPU blocks in one of them."),
    ),
)

TRANSFER = Table(
    "transfer",
    "A transfer of KV between two tiers by one worker: transfer_submit joined with transfer_end.",
    (
        column("process_id", INTEGER, "The process that copied (`process.process_id`)."),
        column("engine_id", INTEGER, "The engine."),
        column("transfer", BIGINT, "Key within the engine; each of its workers has a row."),
        column("connector", TEXT, "The connector's class."),
        Field("direction", _ENUM, "store: away from the GPU's side; load: towards it.", Direction),
        Field("from_tier", _ENUM, "Where the KV was.", Tier),
        Field("to_tier", _ENUM, "Where it was copied to.", Tier),
        column("bytes", BIGINT, "Bytes on this worker; NULL if the connector does not tell."),
        column("blocks", INTEGER, "GPU blocks it covered (between other tiers: their blocks)."),
        column("requests", BIGINT, "Different requests it was for; NULL if the connector does not keep that."),
        column("step", INTEGER, "The step in which it was submitted."),
        column("submitted_ns", BIGINT, "When it was handed to what copies it."),
        column("started_ns", BIGINT, "When work on it began on the host; NULL if that cannot be seen."),
        column("finished_ns", BIGINT, "When the worker knew that it had ended; NULL if the recording ended before."),
        column("device_ns", BIGINT, "Time it took on the GPU, by CUDA events around the copy."),
        column("reported_ns", BIGINT, "Time it took as the connector itself reports."),
        column("success", _BOOLEAN, "It succeeded; NULL while it is not known."),
    ),
    view="""
        WITH asked AS (
            SELECT engine_id, transfer, nullif(count(DISTINCT request), 0) AS requests
            FROM transfer_block GROUP BY engine_id, transfer
        ), ended AS (
            SELECT DISTINCT ON (process_id, transfer) * FROM transfer_end ORDER BY process_id, transfer, finished_ns
        )
        SELECT s.process_id, s.engine_id, s.transfer, s.connector, s.direction, s.from_tier, s.to_tier,
            coalesce(e.bytes, s.bytes) AS bytes, s.blocks, asked.requests, s.step, s.submitted_ns, e.started_ns,
            e.finished_ns, e.device_ns, e.reported_ns, e.success
        FROM transfer_submit s
            LEFT JOIN ended e USING (process_id, transfer)
            LEFT JOIN asked ON asked.engine_id = s.engine_id AND asked.transfer = s.transfer
    """,
)

PIN = Table(
    "pin",
    "An interval in which a block was held by something else than a running request: pin_start joined with pin_end.",
    (
        column("engine_id", INTEGER, "The engine."),
        column("pin", INTEGER, "Key within the engine; blocks pinned together share it."),
        column("block_id", INTEGER, "The block."),
        Field("cause", _ENUM, "By what.", PinCause),
        column("request", INTEGER, "The request whose KV it is; NULL if the connector does not keep that."),
        column("start_ns", BIGINT, "From when."),
        column("end_ns", BIGINT, "To when; NULL if it was still held when the recording ended."),
        column("requested_ttl_ns", BIGINT, "With ttl: the time asked for."),
        Field("end_reason", _ENUM, "Why it ended.", PinEnd),
    ),
    view="""
        SELECT s.engine_id, s.pin, s.block_id, s.cause, s.request, s.time_ns AS start_ns, e.time_ns AS end_ns,
            s.requested_ttl_ns, e.reason AS end_reason
        FROM pin_start s LEFT JOIN pin_end e
            ON s.engine_id = e.engine_id AND s.pin = e.pin AND s.block_id = e.block_id
    """,
)

_CAUSES = [cause.name for cause in PinCause]


def _hold_view() -> str:
    """Each block's time cut where anything about its holders changes, and each piece given to one holder.

    Holds of one request alone without a pin, which are most, are cut at the request's admission and end (`plain`); only
    the others are put together edge by edge (`tangled`), which costs several times as much.
    """
    pins = ", ".join(f"(cause = '{cause}')::INTEGER AS {cause}" for cause in _CAUSES)
    none = ", ".join(f"0 AS {cause}" for cause in _CAUSES)
    minus = ", ".join(f"-{cause}" for cause in ("held", "used", "own", "refs", *_CAUSES))
    sums = ", ".join(f"sum({name}) AS {name}" for name in ("held", "used", "own", "refs", *_CAUSES))
    running = ", ".join(f"sum({name}) OVER life AS {name}" for name in ("held", "used", "own", "refs", *_CAUSES))
    by_pin = " ".join(f"WHEN {cause} > 0 THEN '{cause}'" for cause in _CAUSES)
    return f"""
        WITH ended AS (
            SELECT engine_id, max(ns) AS ns
            FROM (
                SELECT engine_id, max(time_ns) AS ns FROM block_event GROUP BY engine_id
                UNION ALL SELECT engine_id, max(end_ns) FROM step_update GROUP BY engine_id
            ) GROUP BY engine_id
        ), turn AS (
            SELECT engine_id, request, time_ns, op IN ('schedule', 'resume') AS begins
            FROM request_event WHERE op IN ('schedule', 'resume', 'preempt', 'finish')
            UNION ALL
            SELECT DISTINCT engine_id, request, unnest([start_ns, end_ns]), unnest([false, true])
            FROM pin WHERE cause = 'streaming'
        ), period AS (
            SELECT t.engine_id, t.request, t.time_ns AS start_ns, coalesce(t.until_ns, e.ns) AS end_ns
            FROM (
                SELECT *, lead(time_ns) OVER (PARTITION BY engine_id, request ORDER BY time_ns, begins) AS until_ns
                FROM turn WHERE time_ns IS NOT NULL
            ) t JOIN ended e USING (engine_id) WHERE begins
        ), change_of_holders AS MATERIALIZED (
            SELECT engine_id, block_id, time_ns, rowid AS place, op, ref_count, request,
                lag(ref_count, 1, 0) OVER block AS before,
                lead(time_ns) OVER block AS next_ns,
                lead(rowid) OVER block AS next_place,
                -- Most holds are of one request alone: it takes the block, and next gives it back.
                op <> 'free' AND ref_count = 1 AND request IS NOT NULL AND lag(ref_count, 1, 0) OVER block = 0
                    AND coalesce(lead(op) OVER block = 'free' AND lead(ref_count) OVER block = 0
                        AND lead(request) OVER block IS NOT DISTINCT FROM request, true) AS takes_alone,
                op = 'free' AND ref_count = 0 AND request IS NOT NULL AND coalesce(lag(op) OVER block <> 'free'
                    AND lag(ref_count) OVER block = 1 AND lag(ref_count, 2, 0) OVER block = 0
                    AND lag(request) OVER block IS NOT DISTINCT FROM request, false) AS gives_back
            FROM block_event WHERE pool = 0 AND op IN ('allocate', 'hit', 'free')
            WINDOW block AS (PARTITION BY engine_id, block_id ORDER BY rowid)
        ), pinned_until AS (
            SELECT p.engine_id, block_id, start_ns,
                max(coalesce(end_ns, e.ns)) OVER (PARTITION BY p.engine_id, block_id ORDER BY start_ns) AS ns
            FROM pin p JOIN ended e USING (engine_id)
        ), held_alone AS MATERIALIZED (
            SELECT c.*, coalesce(p.ns > c.time_ns, false) AS pinned
            FROM (
                SELECT c.*, coalesce(c.next_ns, e.ns) AS end_ns
                FROM change_of_holders c JOIN ended e USING (engine_id) WHERE takes_alone
            ) c ASOF LEFT JOIN pinned_until p
                ON c.engine_id = p.engine_id AND c.block_id = p.block_id AND c.end_ns > p.start_ns
        ), plain AS (
            SELECT a.engine_id, a.block_id, a.op, a.time_ns AS start_ns, a.end_ns,
                least(coalesce(p.start_ns, a.end_ns), a.end_ns) AS runs_ns,
                least(coalesce(p.end_ns, a.end_ns), a.end_ns) AS ran_ns
            FROM held_alone a ASOF LEFT JOIN period p
                ON a.engine_id = p.engine_id AND a.request = p.request AND a.time_ns < p.end_ns
            WHERE NOT a.pinned
        ), plain_piece AS (
            SELECT engine_id, block_id, unnest([start_ns, greatest(start_ns, runs_ns), ran_ns]) AS start_ns,
                unnest([runs_ns, ran_ns, end_ns]) AS end_ns,
                unnest(['waiting', CASE WHEN op = 'allocate' THEN 'running' ELSE 'prefix_sharing' END, 'waiting'])
                    AS held_by
            FROM plain
        ), tangled AS (
            SELECT *,
                min(CASE WHEN ref_count = 0 THEN time_ns END) OVER (
                    PARTITION BY engine_id, block_id ORDER BY place ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
                ) AS empty_ns
            FROM (
                SELECT engine_id, block_id, time_ns, place, op, ref_count, request, before
                FROM change_of_holders WHERE NOT takes_alone AND NOT gives_back
                UNION ALL
                SELECT engine_id, block_id, time_ns, place, op, ref_count, request, before FROM held_alone WHERE pinned
                UNION ALL
                SELECT engine_id, block_id, next_ns, next_place, 'free', 0, request, 1 FROM held_alone
                WHERE pinned AND next_ns IS NOT NULL
            )
        ), reference AS (
            SELECT r.engine_id, r.block_id, r.request, r.time_ns AS start_ns, r.op = 'allocate' AS own,
                coalesce(least(CASE WHEN next_op = 'free' THEN next_ns END, empty_ns), e.ns) AS end_ns
            FROM (
                SELECT *, lead(op) OVER mine AS next_op, lead(time_ns) OVER mine AS next_ns
                FROM tangled WHERE request IS NOT NULL
                WINDOW mine AS (PARTITION BY engine_id, block_id, request ORDER BY place)
            ) r JOIN ended e USING (engine_id)
            WHERE r.op <> 'free'
        ), using_it AS (
            SELECT r.engine_id, r.block_id, r.own, greatest(r.start_ns, p.start_ns) AS start_ns,
                least(r.end_ns, p.end_ns) AS end_ns
            FROM reference r ASOF JOIN period p
                ON r.engine_id = p.engine_id AND r.request = p.request AND r.start_ns < p.end_ns
        ), span AS (
            SELECT engine_id, block_id, start_ns, end_ns, 0 AS held, 1 AS used, own::INTEGER AS own, 0 AS refs, {none}
            FROM using_it WHERE start_ns < end_ns
            UNION ALL
            SELECT engine_id, block_id, start_ns, end_ns, 0, 0, 0, 1, {none} FROM reference
            UNION ALL
            SELECT p.engine_id, block_id, start_ns, coalesce(end_ns, e.ns), 0, 0, 0, 0, {pins}
            FROM pin p JOIN ended e USING (engine_id)
        ), edge AS (
            SELECT engine_id, block_id, start_ns AS ns, * EXCLUDE (engine_id, block_id, start_ns, end_ns) FROM span
            UNION ALL SELECT engine_id, block_id, end_ns, {minus} FROM span
            UNION ALL
            SELECT engine_id, block_id, time_ns, (ref_count > 0)::INTEGER - (before > 0)::INTEGER, 0, 0, 0, {none}
            FROM tangled WHERE (ref_count > 0) <> (before > 0)
        ), moment AS (
            SELECT engine_id, block_id, ns, {sums} FROM edge GROUP BY engine_id, block_id, ns
        ), piece AS (
            SELECT engine_id, block_id, ns AS start_ns, lead(ns) OVER life AS next_ns, {running}
            FROM moment WINDOW life AS (PARTITION BY engine_id, block_id ORDER BY ns)
        )
        SELECT p.engine_id, block_id, start_ns, coalesce(next_ns, e.ns) AS end_ns,
            CASE WHEN own > 0 THEN 'running' WHEN used > 0 THEN 'prefix_sharing' {by_pin}
                WHEN refs > 0 THEN 'waiting' ELSE 'unattributed' END AS held_by
        FROM piece p JOIN ended e USING (engine_id)
        WHERE held > 0 AND start_ns < coalesce(next_ns, e.ns)
        UNION ALL
        SELECT engine_id, block_id, start_ns, end_ns, held_by FROM plain_piece WHERE start_ns < end_ns
    """


BLOCK_HOLD = Table(
    "block_hold",
    "What held each GPU block when: the time in which it had references, cut so that each piece has one holder. A "
    "running request comes first, then pins in the order of PinCause. Derived from block_event, request_event and pin; "
    "it reads all of them, so ask once and group.",
    (
        column("engine_id", INTEGER, "The engine."),
        column("block_id", INTEGER, "The block."),
        column("start_ns", BIGINT, "From when."),
        column("end_ns", BIGINT, "To when; the last event of the engine if it was still held."),
        column(
            "held_by",
            TEXT,
            "running: a request that runs and had it allocated; prefix_sharing: only requests that run and found it in "
            "the prefix cache; a cause of table `pin`; waiting: a request that does not run and has no pin, such "
            "as one whose load finished and that is not admitted yet; unattributed: kvtrace saw no holder.",
        ),
    ),
    view=_hold_view(),
)

LEDGER: tuple[Table, ...] = (CONNECTOR, TRANSFER, PIN, BLOCK_HOLD)
