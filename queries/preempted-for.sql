-- Who was preempted for whom?
--
-- One row per preemption, in order. The scheduler preempts when another request's allocation fails, so the request of the
-- first allocation in that step after the victim's blocks were freed is the one it was preempted for.
--
-- group: Preemption and eviction
-- needs: request_event, block_event
-- words: who, whom, preempted, preempts, tenant
-- key: time_ns, request, session, preempted_for, for_session, lost_tokens, taken_blocks
-- worst: wait_ms
-- column: engine_id recorded | The engine.
-- column: step recorded | The step that preempted it.
-- column: time_ns [ns] recorded | When, UNIX time.
-- column: request recorded | The victim, key of table `request`.
-- column: session recorded | The victim's session tag.
-- column: tenant recorded | The victim's tenant.
-- column: preempted_for derived | The request that needed blocks; NULL if none was allocated, or the victim itself needed
--     them.
-- column: for_session recorded | That request's session tag.
-- column: for_tenant recorded | That request's tenant.
-- column: lost_tokens [tokens] recorded | Tokens whose KV the victim gave up.
-- column: lost_blocks [blocks] recorded | Its blocks.
-- column: taken_blocks [blocks] derived | Of them, allocated to other requests in the same step.
-- column: resume_step recorded | The step that admitted the victim again; NULL if none did.
-- column: wait_ms [ms] derived | Time until then.

WITH moved AS (
    SELECT engine_id, rowid AS place, step, op, block_id, request
    FROM block_event
    WHERE pool = 0 AND op IN ('free', 'allocate')
), freed AS (
    SELECT
        m.engine_id, m.request, m.step, m.block_id, m.place,
        max(m.place) OVER (PARTITION BY m.engine_id, m.request, m.step) AS last_place
    FROM moved m JOIN preemption p ON p.engine_id = m.engine_id AND p.request = m.request AND p.step = m.step
    WHERE m.op = 'free'
), gainer AS (
    SELECT f.engine_id, f.request, f.step, arg_min(m.request, m.place) AS preempted_for
    FROM (SELECT DISTINCT engine_id, request, step, last_place FROM freed) f
    JOIN moved m ON m.engine_id = f.engine_id AND m.step = f.step AND m.place > f.last_place
    WHERE m.op = 'allocate'
    GROUP BY f.engine_id, f.request, f.step
), taken AS (
    SELECT f.engine_id, f.request, f.step, count(DISTINCT m.block_id) AS blocks
    FROM freed f
    JOIN moved m
        ON m.engine_id = f.engine_id AND m.step = f.step AND m.block_id = f.block_id AND m.place > f.place
    WHERE m.op = 'allocate' AND m.request <> f.request
    GROUP BY f.engine_id, f.request, f.step
)
SELECT
    p.engine_id,
    p.step,
    p.time_ns,
    p.request,
    r.session,
    r.tenant,
    nullif(g.preempted_for, p.request) AS preempted_for,
    CASE WHEN g.preempted_for <> p.request THEN o.session END AS for_session,
    CASE WHEN g.preempted_for <> p.request THEN o.tenant END AS for_tenant,
    p.lost_tokens,
    p.lost_blocks,
    coalesce(t.blocks, 0) AS taken_blocks,
    p.resume_step,
    (p.resume_ns - p.time_ns) / 1e6 AS wait_ms
FROM preemption p
LEFT JOIN gainer g ON g.engine_id = p.engine_id AND g.request = p.request AND g.step = p.step
LEFT JOIN taken t ON t.engine_id = p.engine_id AND t.request = p.request AND t.step = p.step
LEFT JOIN request r ON r.request = p.request
LEFT JOIN request o ON o.request = g.preempted_for
ORDER BY p.engine_id, p.time_ns, p.request
