-- Who held the KV, for how long, and what did the prefix cache save them?
--
-- One row per group of requests. A request holds a block from its allocation or hit until it gives it back, also while
-- it waits after a preemption; a shared block counts for each request that holds it.
--
-- group: KV memory
-- needs: block_event, request
-- param: by VARCHAR(session kind tenant lora model request prefix) = session | Groups: session, kind (the session
--     without the number at its end), tenant, lora (the adapter; NULL: the base model), model, request, or prefix (the
--     content of the first block; needs table block_table).
-- words: who, holds, memory, hog, tenant, session, lora, adapter
-- key: holder, requests, block_seconds, share, prompt_tokens, hit_tokens, hit_rate
-- column: engine_id recorded | The engine.
-- column: holder derived | The group; NULL for requests that do not tell.
-- column: requests [requests] derived | Its requests.
-- column: block_seconds [block-s] derived | Blocks held, over time.
-- column: share [ratio] derived | Of all block-seconds of the engine's requests.
-- column: prompt_tokens [tokens] derived | Tokens of their prompts.
-- column: hit_tokens [tokens] derived | Of them, found at first admission in the prefix cache or by a connector.
-- column: hit_rate [ratio] derived | hit_tokens over prompt_tokens.

WITH member AS (
    SELECT
        r.request,
        r.engine_id,
        r.finished_ns,
        r.prompt_tokens,
        coalesce(r.local_cached_tokens, 0) + coalesce(r.external_cached_tokens, 0) AS hit_tokens,
        CASE $by
            WHEN 'session' THEN r.session
            WHEN 'kind' THEN regexp_replace(r.session, '[-_ ]?[0-9]+$', '')
            WHEN 'tenant' THEN r.tenant
            WHEN 'lora' THEN r.lora
            WHEN 'model' THEN e.model
            WHEN 'request' THEN r.request::VARCHAR
            WHEN 'prefix' THEN f.block_hash::VARCHAR
        END AS name
    FROM request r
    LEFT JOIN engine e ON e.engine_id = r.engine_id
    LEFT JOIN (SELECT request, block_hash FROM first_block WHERE $by = 'prefix') f ON f.request = r.request
    WHERE r.queued_ns IS NOT NULL OR r.scheduled_ns IS NOT NULL
), ended AS (
    SELECT engine_id, max(time_ns) AS last_ns FROM block_event GROUP BY engine_id
), turn AS (
    SELECT
        engine_id, request, op, time_ns,
        lead(time_ns) OVER (PARTITION BY engine_id, pool, block_id, request ORDER BY time_ns, rowid) AS next_ns
    FROM block_event
    WHERE op IN ('allocate', 'hit', 'free') AND request IS NOT NULL
), held AS (
    SELECT
        t.engine_id,
        t.request,
        sum(greatest(0, coalesce(t.next_ns, m.finished_ns, e.last_ns) - t.time_ns)) / 1e9 AS block_seconds
    FROM turn t
    LEFT JOIN member m ON m.request = t.request
    LEFT JOIN ended e ON e.engine_id = t.engine_id
    WHERE t.op <> 'free'
    GROUP BY t.engine_id, t.request
), grouped AS (
    SELECT
        m.engine_id,
        m.name AS holder,
        count(*) AS requests,
        coalesce(sum(h.block_seconds), 0) AS block_seconds,
        sum(m.prompt_tokens)::BIGINT AS prompt_tokens,
        sum(m.hit_tokens)::BIGINT AS hit_tokens
    FROM member m LEFT JOIN held h ON h.request = m.request
    GROUP BY m.engine_id, m.name
)
SELECT
    engine_id,
    holder,
    requests,
    block_seconds,
    block_seconds / nullif(sum(block_seconds) OVER (PARTITION BY engine_id), 0) AS share,
    prompt_tokens,
    hit_tokens,
    hit_tokens / nullif(prompt_tokens, 0) AS hit_rate
FROM grouped
ORDER BY engine_id, block_seconds DESC, holder
