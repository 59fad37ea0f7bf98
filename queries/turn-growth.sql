-- How much slower is a job's last turn than its first, and what kind of failure does that look like?
--
-- One row, over the jobs that completed all turns up to last_turn. The ratio is T8/T1 of the study where jobs have
-- eight turns. Without last_turn it is the highest turn number that at least half of the jobs completed.
--
-- The failure mode is inferred from the mean latencies of the turns by the first rule that holds. `flat`: the slowest
-- turn took less than `growth` times the fastest. `transfer_wall`: ratio at least `growth`, and for at least `share` of
-- the time from the first arrival to the last end a transfer from or to an offload tier was under way (no longer than
-- the copies took by the device's clock, or by the connector's, where that is known).
-- `admission_spike`: the slowest turn comes before the last, took at least `growth` times the mean of those after it,
-- and the slowest of these less than `growth` times the fastest. `linear_queueing`: ratio at least `growth`, a line
-- through the means has r2 of at least `fit`, and at least `share` of the growth is waiting for the first admission.
-- `linear_service`: the same, but most of the growth is computing. `unclear`: none of these. The columns show what the
-- rules saw; read them before you believe the name.
--
-- group: Requests and jobs
-- figure: LMCache study: T8/T1 ratio and failure modes
-- needs: request
-- param: first_turn INTEGER = 1 | The turn to compare with.
-- param: last_turn INTEGER = NULL | The turn to compare; NULL: the highest that half of the jobs completed.
-- param: growth DOUBLE = 1.5 | From which factor on a latency counts as grown.
-- param: fit DOUBLE = 0.8 | From which r2 on latencies count as a line.
-- param: share DOUBLE = 0.5 | From which share on waiting, or transfers, count as the cause.
-- key: jobs, first_ms, last_ms, last_over_first, failure_mode, queue_share
-- column: first_turn derived | The turn compared with.
-- column: last_turn derived | The turn compared.
-- column: jobs derived | Jobs that completed all turns up to it.
-- column: first_ms [ms] derived | Mean latency of their first_turn.
-- column: last_ms [ms] derived | Mean latency of their last_turn.
-- column: last_over_first [ratio] derived | last_ms over first_ms: T8/T1.
-- column: failure_mode inferred | flat, transfer_wall, admission_spike, linear_queueing, linear_service or unclear.
-- column: slope_ms_per_turn [ms/turn] derived | Slope of a line through the turns' mean latencies (fitted).
-- column: r2 [ratio] derived | Share of the variance of those means that the line explains; NULL with fewer than three.
-- column: peak_turn derived | The turn with the largest mean latency; of several, the first.
-- column: peak_over_later [ratio] derived | Its mean latency over the mean of the turns after it.
-- column: queue_share [ratio] derived | Share of last_ms - first_ms that is waiting for the first admission.
-- column: transfer_share [ratio] derived | Share of the time with a transfer under way: from submissions to ends, but
--     in all no longer than the copies took by the device's clock, or by the connector's, where that is known.
-- setting: jobs_per_s

WITH turns AS (
    -- The slowest of several requests of one turn tag makes the turn.
    SELECT
        t.session,
        t.turn_number,
        bool_and(t.completed) AS completed,
        min(t.arrival_ns) AS arrival_ns,
        max(t.finished_ns) AS finished_ns,
        max(t.duration_ns) AS latency_ns,
        max(r.scheduled_ns - t.arrival_ns) AS queue_ns
    FROM job_turn t JOIN request r USING (request)
    GROUP BY t.session, t.turn_number
), whole AS (
    SELECT session, coalesce(min(turn_number) FILTER (NOT completed) - 1, max(turn_number)) AS turns
    FROM turns
    GROUP BY session
), chosen AS (
    SELECT coalesce($last_turn, quantile_disc(turns, 0.5 ORDER BY turns DESC))::BIGINT AS last_turn FROM whole
), counted AS (
    SELECT t.*
    FROM turns t JOIN whole w USING (session), chosen c
    WHERE w.turns >= c.last_turn AND t.turn_number BETWEEN $first_turn AND c.last_turn
), mean AS (
    SELECT turn_number, avg(latency_ns) AS latency_ns, avg(queue_ns) AS queue_ns FROM counted GROUP BY turn_number
), peak AS (
    SELECT min(turn_number) AS turn, max(latency_ns) AS latency_ns
    FROM mean
    WHERE latency_ns = (SELECT max(latency_ns) FROM mean)
), later AS (
    SELECT avg(m.latency_ns) AS mean_ns, max(m.latency_ns) / min(m.latency_ns) AS spread
    FROM mean m, peak
    WHERE m.turn_number > peak.turn
), span AS (
    SELECT min(arrival_ns) AS start_ns, max(finished_ns) AS end_ns FROM counted
), moving AS (
    SELECT
        submitted_ns,
        finished_ns,
        coalesce(device_ns, reported_ns) AS copy_ns,
        least(finished_ns, span.end_ns) - greatest(submitted_ns, span.start_ns) AS within_ns,
        max(finished_ns) OVER (
            ORDER BY submitted_ns, finished_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before_ns
    FROM transfer, span
    WHERE finished_ns > span.start_ns AND submitted_ns < span.end_ns
), moved AS (
    -- From a submission to the step that tells of its end is longer than the copy.
    SELECT
        least(
            sum(greatest(
                least(finished_ns, span.end_ns) - greatest(submitted_ns, coalesce(before_ns, 0), span.start_ns), 0
            )),
            sum(least(coalesce(copy_ns, within_ns), within_ns))
        ) AS ns
    FROM moving, span
), fitted AS (
    SELECT
        arg_min(latency_ns, turn_number) AS first_ns,
        arg_max(latency_ns, turn_number) AS last_ns,
        arg_max(queue_ns, turn_number) - arg_min(queue_ns, turn_number) AS queue_growth_ns,
        max(latency_ns) / min(latency_ns) AS spread,
        CASE WHEN count(*) > 1 THEN regr_slope(latency_ns, turn_number) END AS slope_ns,
        CASE WHEN count(*) > 2 AND min(latency_ns) < max(latency_ns) THEN regr_r2(latency_ns, turn_number) END AS r2
    FROM mean
), seen AS (
    SELECT
        f.*,
        p.turn AS peak_turn,
        p.latency_ns / l.mean_ns AS peak_over_later,
        l.spread AS later_spread,
        f.last_ns / f.first_ns AS ratio,
        f.queue_growth_ns / nullif(f.last_ns - f.first_ns, 0) AS queue_share,
        coalesce(m.ns, 0) / nullif(s.end_ns - s.start_ns, 0) AS transfer_share
    FROM fitted f, peak p, later l, span s, moved m
)
SELECT
    $first_turn::BIGINT AS first_turn,
    c.last_turn,
    (SELECT count(DISTINCT session) FROM counted) AS jobs,
    first_ns / 1e6 AS first_ms,
    last_ns / 1e6 AS last_ms,
    ratio AS last_over_first,
    CASE
        WHEN spread < $growth THEN 'flat'
        WHEN ratio >= $growth AND transfer_share >= $share THEN 'transfer_wall'
        WHEN peak_over_later >= $growth AND later_spread < $growth THEN 'admission_spike'
        WHEN ratio >= $growth AND r2 >= $fit AND queue_share >= $share THEN 'linear_queueing'
        WHEN ratio >= $growth AND r2 >= $fit THEN 'linear_service'
        ELSE 'unclear'
    END AS failure_mode,
    slope_ns / 1e6 AS slope_ms_per_turn,
    r2,
    peak_turn,
    peak_over_later,
    queue_share,
    transfer_share,
    s.policy, s.jobs_per_s, s.blocks, s.block_size_tokens, s.cache_mode
FROM seen, chosen c, run_setting s
WHERE first_ns IS NOT NULL
ORDER BY jobs
