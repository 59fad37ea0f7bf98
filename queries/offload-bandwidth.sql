-- When were offload transfers saturated: bytes a second by direction, against the run's maximum?
--
-- One row per engine, direction and stretch of time, from the engine's first transfer to the end of its last, empty
-- stretches included. A transfer's bytes, over all workers, are spread evenly from its start on the host (its
-- submission, where that cannot be seen) to its end as the worker knew it, so a stretch much shorter than a step shows
-- polling, not copying. Transfers without a known end or bytes are left out. Saturated are stretches whose share of the
-- peak and share of time under way are both near one.
--
-- group: Offload
-- figure: LMCache study: offload bandwidth over time
-- needs: transfer_submit, transfer_end
-- param: bucket_ms DOUBLE = 1000 | Length of a stretch.
-- key: direction, time_ns, started_transfers, bytes, bytes_per_s, peak_share
-- column: engine_id recorded | The engine.
-- column: direction recorded | store: away from the GPU's side; load: towards it.
-- column: time_ns [ns] derived | Start of the stretch, UNIX time.
-- column: started_transfers [transfers] derived | Transfers that started in it.
-- column: bytes [bytes] derived | Bytes moved in it.
-- column: bytes_per_s [bytes/s] derived | bytes over its length.
-- column: peak_share [ratio] derived | bytes_per_s over that of the run's busiest stretch of this direction.
-- column: under_way_share [ratio] derived | Share of it in which at least one transfer was under way.
-- column: mean_under_way [transfers] derived | Mean number of transfers under way.

WITH timed AS (
    SELECT
        engine_id,
        direction,
        bytes,
        coalesce(started_ns, submitted_ns) AS start_ns,
        greatest(finished_ns, coalesce(started_ns, submitted_ns) + 1) AS end_ns
    FROM transfer
    WHERE finished_ns IS NOT NULL AND bytes IS NOT NULL
), numbered AS (
    SELECT
        *,
        ($bucket_ms * 1e6)::BIGINT AS width,
        min(start_ns) OVER (PARTITION BY engine_id) AS zero_ns,
        max(end_ns) OVER (PARTITION BY engine_id) AS last_ns,
        max(end_ns) OVER (
            PARTITION BY engine_id, direction ORDER BY start_ns, end_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before_ns
    FROM timed
), spread AS (
    SELECT *, unnest(range((start_ns - zero_ns) // width, (end_ns - 1 - zero_ns) // width + 1)) AS bucket FROM numbered
), cut AS (
    SELECT *, zero_ns + bucket * width AS from_ns FROM spread
), piece AS (
    SELECT
        *,
        least(end_ns, from_ns + width) - greatest(start_ns, from_ns) AS ns,
        greatest(least(end_ns, from_ns + width) - greatest(start_ns, from_ns, coalesce(before_ns, 0)), 0) AS new_ns
    FROM cut
), filled AS (
    SELECT
        engine_id,
        direction,
        bucket,
        count(*) FILTER (start_ns >= from_ns) AS started,
        sum(bytes * (ns / (end_ns - start_ns))) AS bytes,
        sum(ns) AS ns,
        sum(new_ns) AS covered_ns
    FROM piece
    GROUP BY engine_id, direction, bucket
), stretch AS (
    SELECT engine_id, direction, width, zero_ns, unnest(range(buckets)) AS bucket
    FROM (
        SELECT
            engine_id,
            direction,
            any_value(width) AS width,
            any_value(zero_ns) AS zero_ns,
            max((last_ns - 1 - zero_ns) // width) + 1 AS buckets
        FROM numbered
        GROUP BY engine_id, direction
    )
)
SELECT
    s.engine_id,
    s.direction,
    s.zero_ns + s.bucket * s.width AS time_ns,
    coalesce(f.started, 0) AS started_transfers,
    round(coalesce(f.bytes, 0))::BIGINT AS bytes,
    coalesce(f.bytes, 0) / (s.width / 1e9) AS bytes_per_s,
    coalesce(f.bytes, 0) / nullif(max(f.bytes) OVER (PARTITION BY s.engine_id, s.direction), 0) AS peak_share,
    coalesce(f.covered_ns, 0) / s.width AS under_way_share,
    coalesce(f.ns, 0) / s.width AS mean_under_way
FROM stretch s LEFT JOIN filled f USING (engine_id, direction, bucket)
ORDER BY s.engine_id, s.direction, time_ns
