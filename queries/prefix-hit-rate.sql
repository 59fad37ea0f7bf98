-- How much of each request's prompt did the prefix cache supply?
--
-- Only lookups whose allocation succeeded count: their hits were used. A request blocked at the head of the queue
-- repeats its lookup every step; those lookups count only in blocked_lookups. Lookups after a preemption have columns
-- of their own, because they also find the request's own blocks. One row per request that was looked up at all.
--
-- group: Prefix caching
-- needs: prefix_lookup
-- param: session VARCHAR = NULL | Only the requests of this session.
-- words: hit, rate
-- key: request, session, turn, queried_tokens, local_hit_tokens, hit_rate
-- column: engine_id recorded | The engine.
-- column: request recorded | Key of table `request`.
-- column: external_id recorded | The id the client knows.
-- column: session recorded | Session tag, if the client passed one.
-- column: turn recorded | Turn tag, if the client passed one.
-- column: enabled recorded | Prefix caching was on for the request.
-- column: queried_tokens [tokens] derived | Tokens looked up at admission; NULL if it was never admitted.
-- column: local_hit_tokens [tokens] derived | Of them, found in the GPU prefix cache.
-- column: external_hit_tokens [tokens] derived | Of them, supplied by a KV connector; NULL if none was asked.
-- column: hit_rate [ratio] derived | Hits of both kinds over queried_tokens; NULL with prefix caching off.
-- column: blocked_lookups derived | Lookups whose allocation was refused.
-- column: resumed_queried_tokens [tokens] derived | Tokens looked up at admissions after a preemption.
-- column: resumed_hit_tokens [tokens] derived | Of them, found, locally or by a connector.

WITH counted AS (
    SELECT
        engine_id,
        request,
        bool_or(enabled) AS enabled,
        min(time_ns) AS first_ns,
        sum(queried_tokens) FILTER (admitted AND NOT resumed) AS queried_tokens,
        sum(local_hit_tokens) FILTER (admitted AND NOT resumed) AS local_hit_tokens,
        sum(external_hit_tokens) FILTER (admitted AND NOT resumed) AS external_hit_tokens,
        count(*) FILTER (NOT admitted) AS blocked_lookups,
        sum(queried_tokens) FILTER (admitted AND resumed) AS resumed_queried_tokens,
        sum(local_hit_tokens + coalesce(external_hit_tokens, 0)) FILTER (admitted AND resumed) AS resumed_hit_tokens
    FROM prefix_lookup
    GROUP BY engine_id, request
)
SELECT
    counted.engine_id,
    request,
    r.external_id,
    r.session,
    r.turn,
    enabled,
    queried_tokens::BIGINT AS queried_tokens,
    local_hit_tokens::BIGINT AS local_hit_tokens,
    external_hit_tokens::BIGINT AS external_hit_tokens,
    CASE WHEN enabled THEN (local_hit_tokens + coalesce(external_hit_tokens, 0)) / nullif(queried_tokens, 0) END
        AS hit_rate,
    blocked_lookups,
    resumed_queried_tokens::BIGINT AS resumed_queried_tokens,
    resumed_hit_tokens::BIGINT AS resumed_hit_tokens
FROM counted LEFT JOIN request r USING (request)
WHERE $session IS NULL OR r.session = $session
ORDER BY counted.engine_id, first_ns, request
