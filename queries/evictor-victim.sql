-- Who evicted whose KV, and how much of it was needed again?
--
-- One row per pair. The victim of an eviction is the request that used the block last. An eviction was regretted if a
-- later lookup missed the block: then the victim is who looked it up. Most evictions cost nothing, regretted ones do.
--
-- group: Preemption and eviction
-- needs: block_event, request
-- param: by VARCHAR(session kind tenant lora model request) = session | Groups: session, kind (the session without
--     the number at its end), tenant, lora (the adapter; NULL: the base model), model or request.
-- words: who, whom, evicts, evicted, evictor, victim, tenant, lora, adapter
-- key: evictor, victim, evicted_blocks, regretted_lookups, lost_tokens, lost_ms
-- column: engine_id recorded | The engine.
-- column: evictor derived | Group of the requests whose allocations took the blocks; NULL for requests that do not tell.
-- column: victim derived | Group of the requests that used the blocks last, or looked them up in vain.
-- column: evicted_blocks [blocks] derived | Blocks evicted.
-- column: regretted_lookups derived | Lookups whose first missing block had been evicted so.
-- column: lost_tokens [tokens] derived | Tokens that they had to compute again.
-- column: lost_ms [ms] derived | Their price by the fitted cost model; NULL without one.

WITH member AS (
    SELECT
        r.request,
        CASE $by
            WHEN 'session' THEN r.session
            WHEN 'kind' THEN regexp_replace(r.session, '[-_ ]?[0-9]+$', '')
            WHEN 'tenant' THEN r.tenant
            WHEN 'lora' THEN r.lora
            WHEN 'model' THEN e.model
            WHEN 'request' THEN r.request::VARCHAR
        END AS name
    FROM request r LEFT JOIN engine e ON e.engine_id = r.engine_id
), used AS (
    SELECT
        engine_id,
        op,
        request,
        last_value(CASE WHEN op IN ('allocate', 'hit') THEN request END IGNORE NULLS) OVER (
            PARTITION BY engine_id, pool, block_id ORDER BY rowid
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS last_request
    FROM block_event WHERE op IN ('allocate', 'hit', 'evict')
), evicted AS (
    SELECT u.engine_id, a.name AS evictor, v.name AS victim, count(*) AS blocks, 0 AS lookups, 0 AS tokens, NULL AS ns
    FROM used u
    LEFT JOIN member a ON a.request = u.request
    LEFT JOIN member v ON v.request = u.last_request
    WHERE u.op = 'evict'
    GROUP BY u.engine_id, a.name, v.name
), regretted AS (
    SELECT
        m.engine_id,
        a.name AS evictor,
        v.name AS victim,
        0 AS blocks,
        count(*) AS lookups,
        sum(m.avoidable_tokens) AS tokens,
        sum(m.avoidable_ns) AS ns
    FROM prefix_miss m
    LEFT JOIN member a ON a.request = m.other_request
    LEFT JOIN member v ON v.request = m.request
    WHERE m.verdict = 'evicted' AND m.other_request IS NOT NULL
    GROUP BY m.engine_id, a.name, v.name
)
SELECT
    engine_id,
    evictor,
    victim,
    sum(blocks)::BIGINT AS evicted_blocks,
    sum(lookups)::BIGINT AS regretted_lookups,
    sum(tokens)::BIGINT AS lost_tokens,
    sum(ns) / 1e6 AS lost_ms
FROM (
    SELECT * FROM evicted
    UNION ALL
    SELECT * FROM regretted
)
GROUP BY engine_id, evictor, victim
ORDER BY engine_id, lost_tokens DESC, evicted_blocks DESC, evictor, victim
