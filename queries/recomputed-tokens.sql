-- What was done twice: tokens computed again after a preemption or an eviction, and lookups repeated?
--
-- One row per engine and cause that occurred.
--
-- preemption: tokens at positions that the request had computed before a preemption took its blocks, and its lookups
-- after that. eviction: tokens of a first admission's prompt that an earlier request had computed and vLLM could have
-- reused, had the block not been evicted, from an offload tier too, or emptied by a reset (the avoidable tokens of
-- query prefix-miss). refused: a request at the head of the queue that did not fit is looked up again every step; it
-- computes nothing twice. replay: tokens of a hit that an admission computed again, since vLLM rebuilds a sliding window
-- from it on purpose (`swa_bounded_replay`), or since the connector's load of them failed.
--
-- group: Preemption and eviction
-- figure: 72-run policy study: retries and recomputation after eviction
-- needs: request_event, prefix_lookup, step_request
-- key: cause, events, requests, recomputed_tokens, recomputed_share
-- column: engine_id recorded | The engine.
-- column: cause derived | preemption, eviction, refused or replay.
-- column: events derived | Preemptions; admissions that missed what was evicted; requests that were refused; admissions that
--     computed tokens of their hit.
-- column: requests [requests] derived | Different requests.
-- column: recomputed_tokens [tokens] derived | Tokens computed again.
-- column: recomputed_share [ratio] derived | Their share of all tokens that the engine's steps computed.
-- column: repeated_lookups derived | Lookups after the request's first, for this cause.
-- column: repeated_tokens [tokens] derived | Tokens looked up by them.
-- setting: jobs_per_s

WITH preempted AS (
    SELECT
        engine_id, request, step, max(computed_tokens) OVER (
            PARTITION BY engine_id, request ORDER BY time_ns, rowid
        ) AS lost_tokens
    FROM request_event
    WHERE op = 'preempt'
), again AS (
    SELECT
        r.engine_id,
        sum(greatest(least(r.computed_tokens + r.scheduled_tokens, p.lost_tokens) - r.computed_tokens, 0))::BIGINT
            AS tokens
    FROM (FROM step_request WHERE phase = 'resumed') r
    ASOF JOIN preempted p ON r.engine_id = p.engine_id AND r.request = p.request AND r.step >= p.step
    GROUP BY r.engine_id
), lookup AS (
    SELECT
        engine_id,
        count(*) FILTER (resumed) AS resumed_lookups,
        sum(queried_tokens) FILTER (resumed) AS resumed_tokens,
        count(*) FILTER (NOT resumed AND repeat > 0) AS repeated_lookups,
        sum(queried_tokens) FILTER (NOT resumed AND repeat > 0) AS repeated_tokens,
        count(DISTINCT request) FILTER (NOT resumed AND NOT admitted) AS refused
    FROM prefix_lookup
    GROUP BY engine_id
), computed AS (
    SELECT engine_id, sum(scheduled_tokens) AS tokens FROM step_request GROUP BY engine_id
), told AS (
    SELECT
        p.engine_id,
        'preemption' AS cause,
        count(*) AS events,
        count(DISTINCT request) AS requests,
        coalesce(any_value(a.tokens), 0) AS recomputed_tokens,
        coalesce(any_value(l.resumed_lookups), 0) AS repeated_lookups,
        coalesce(any_value(l.resumed_tokens), 0) AS repeated_tokens
    FROM preempted p LEFT JOIN again a USING (engine_id) LEFT JOIN lookup l USING (engine_id)
    GROUP BY p.engine_id
    UNION ALL
    SELECT engine_id, 'eviction', count(*), count(DISTINCT request), sum(avoidable_tokens), 0, 0
    FROM prefix_miss
    WHERE verdict IN ('evicted', 'evicted_from_tier', 'reset') AND NOT resumed
    GROUP BY engine_id
    UNION ALL
    SELECT engine_id, 'refused', refused, refused, 0, repeated_lookups, coalesce(repeated_tokens, 0)
    FROM lookup
    WHERE refused > 0
    UNION ALL
    -- The last token of a prompt that was found as a whole is always computed.
    SELECT engine_id, 'replay', count(*), count(DISTINCT request), sum(tokens), 0, 0
    FROM (
        SELECT
            engine_id, request, local_cached_tokens + coalesce(external_cached_tokens, 0) - computed_tokens AS tokens
        FROM request_event WHERE op IN ('schedule', 'resume')
    )
    WHERE tokens > 1
    GROUP BY engine_id
)
SELECT
    engine_id,
    cause,
    events,
    told.requests,
    recomputed_tokens::BIGINT AS recomputed_tokens,
    recomputed_tokens / nullif(c.tokens, 0) AS recomputed_share,
    repeated_lookups,
    repeated_tokens::BIGINT AS repeated_tokens,
    s.policy, s.jobs_per_s, s.blocks, s.block_size_tokens, s.cache_mode
FROM told LEFT JOIN computed c USING (engine_id), run_setting s
ORDER BY engine_id, cause
