-- A request that generated, by what the prefix cache could do for it.
--
-- Two requests share a first block if vLLM gave it the same content hash (view first_block); a prompt shorter than a
-- block is cold and unique. It reads all block events, so ask once.
--
-- needs: engine, first_block, prefix_lookup, request
-- column: request recorded | The request.
-- column: engine_id recorded | The engine.
-- column: session recorded | Its session tag.
-- column: place derived | Its place in order of arrival, counted from 1.
-- column: at_s [s] derived | When it arrived, from the trace's first arrival, s.
-- column: prompt_tokens [tokens] recorded | Prompt length.
-- column: hit_tokens [tokens] derived | Tokens found at first admission, by either cache.
-- column: ttft_ns [ns] derived | From arrival to the first token.
-- column: queue_ns [ns] derived | From arrival to the first admission.
-- column: earlier_requests [requests] derived | Requests with the same first block, admitted before it; NULL if
--     unknown.
-- column: warmth derived | cold: no earlier request had its first block, so no hit was possible; warm_hit: one had, and
--     something was found; warm_miss: one had, and nothing was found; off: prefix caching was; unknown: the content of
--     its first block was not recorded.
-- column: sharing derived | shared: another request, earlier or later, has its first block; unique: none has; unknown.

WITH arrived AS (
    SELECT
        *, (arrival_ns - min(arrival_ns) OVER ()) / 1e9 AS at_s,
        row_number() OVER (ORDER BY arrival_ns, request) AS place,
        coalesce(local_cached_tokens, 0) + coalesce(external_cached_tokens, 0) AS hit_tokens
    FROM request
), looked_up AS (
    SELECT request, bool_or(enabled) AS enabled FROM prefix_lookup GROUP BY request
)
SELECT
    a.request, a.engine_id, a.session, a.place, a.at_s, a.prompt_tokens, a.hit_tokens,
    a.first_token_ns - a.arrival_ns AS ttft_ns, a.scheduled_ns - a.arrival_ns AS queue_ns, f.earlier_requests,
    CASE
        WHEN l.enabled IS NOT TRUE THEN 'off'
        WHEN a.hit_tokens > 0 THEN 'warm_hit'
        WHEN f.earlier_requests > 0 THEN 'warm_miss'
        WHEN f.earlier_requests = 0 OR a.prompt_tokens < e.block_size_tokens THEN 'cold'
        ELSE 'unknown'
    END AS warmth,
    CASE
        WHEN f.earlier_requests + f.later_requests > 0 THEN 'shared'
        WHEN f.request IS NOT NULL OR a.prompt_tokens < e.block_size_tokens THEN 'unique'
        ELSE 'unknown'
    END AS sharing
FROM arrived a
LEFT JOIN looked_up l USING (request)
LEFT JOIN first_block f USING (request)
LEFT JOIN engine e ON e.engine_id = a.engine_id
WHERE a.first_token_ns IS NOT NULL
