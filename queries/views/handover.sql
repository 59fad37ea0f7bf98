-- A request whose prompt one engine computed and whose answer another (disaggregated prefill and decode).
--
-- The two engines' requests are joined. Times of two hosts are as sure as uncertainty_ns.
--
-- needs: connector_call, engine, host_clock, pin, process, request, request_event, request_remote
-- column: prefill_request derived | The request in the engine that computed its prompt.
-- column: decode_request derived | The request in the engine that took over the KV.
-- column: prefill_engine_id recorded | That engine.
-- column: decode_engine_id recorded | The other.
-- column: external_id recorded | The id the client knows.
-- column: matched_by derived | remote_request_id, transfer_id: by kv_transfer_params; external_id: the same client id,
--     in engines with connectors: first one token, then KV from outside.
-- column: prefill_arrival_ns [ns] recorded | When it arrived at the first engine.
-- column: prefill_scheduled_ns [ns] recorded | When it was first admitted there.
-- column: prefill_end_ns [ns] recorded | When it ended there: the prompt's KV is computed.
-- column: decode_arrival_ns [ns] recorded | When it arrived at the other engine.
-- column: decode_scheduled_ns [ns] recorded | When it was first admitted there.
-- column: load_start_ns [ns] derived | When that engine began to load its KV: to wait for it (asynchronous), or load
--     calls of its first step; NULL if neither was recorded.
-- column: load_end_ns [ns] derived | When it had it.
-- column: asynchronous derived | yes: loaded before it was admitted; no: in its first step; NULL if not known.
-- column: first_token_ns [ns] recorded | When its first output token came back from the other engine's model.
-- column: loaded_tokens [tokens] recorded | Tokens whose KV came from outside.
-- column: uncertainty_ns [ns] derived | Of one engine's times against the other's; 0 on one host, NULL: unbounded.

WITH place AS (
    SELECT process_id, p.host_clock, h.uncertainty_ns FROM process p LEFT JOIN host_clock h USING (host_clock)
), answered AS (
    SELECT * FROM request WHERE external_cached_tokens > 0
), told AS (
    SELECT
        p.request AS prefill_request, d.request AS decode_request, 1 AS rank,
        'remote_request_id' AS matched_by
    FROM request_remote r JOIN answered d ON d.request = r.request
    JOIN request p ON p.internal_id = r.remote_request AND p.engine_id <> d.engine_id
    WHERE r.part = 'decode'
    UNION ALL
    SELECT p.request, d.request, 2, 'transfer_id'
    FROM request_remote r JOIN request_remote s ON r.transfer = s.transfer AND s.part = 'prefill'
    JOIN answered d ON d.request = r.request
    JOIN request p ON p.request = s.request AND p.engine_id <> d.engine_id
    WHERE r.part = 'decode'
    UNION ALL
    SELECT p.request, d.request, 3, 'external_id'
    FROM answered d JOIN request p ON p.external_id = d.external_id AND p.engine_id <> d.engine_id
    JOIN engine pe ON pe.engine_id = p.engine_id JOIN engine de ON de.engine_id = d.engine_id
    WHERE
        p.max_tokens = 1 AND (d.max_tokens <> 1 OR coalesce(p.external_cached_tokens, 0) = 0)
        AND pe.connector IS NOT NULL AND de.connector IS NOT NULL
), pair AS (
    SELECT DISTINCT ON (decode_request) t.*
    FROM told t JOIN request p ON p.request = t.prefill_request JOIN request d ON d.request = t.decode_request
    ORDER BY decode_request, rank, abs(d.queued_ns - p.finished_ns)
), waited AS (
    SELECT request, min(start_ns) AS start_ns, max(end_ns) AS end_ns
    FROM pin WHERE cause = 'async_load' AND request IN (SELECT decode_request FROM pair) GROUP BY request
), called AS (
    SELECT e.request, min(c.start_ns) AS start_ns, max(c.end_ns) AS end_ns
    FROM request_event e JOIN connector_call c
        ON c.engine_id = e.engine_id AND c.step = e.step AND c.call = 'load' AND c.part = 0
    WHERE e.op = 'schedule' AND e.request IN (SELECT decode_request FROM pair) GROUP BY e.request
)
SELECT
    pair.prefill_request, pair.decode_request, p.engine_id AS prefill_engine_id,
    d.engine_id AS decode_engine_id, coalesce(d.external_id, p.external_id) AS external_id, pair.matched_by,
    coalesce(p.arrival_ns, p.queued_ns) AS prefill_arrival_ns, p.scheduled_ns AS prefill_scheduled_ns,
    p.finished_ns AS prefill_end_ns,
    coalesce(d.arrival_ns, d.queued_ns) AS decode_arrival_ns, d.scheduled_ns AS decode_scheduled_ns,
    coalesce(w.start_ns, c.start_ns) AS load_start_ns,
    CASE WHEN w.request IS NULL THEN c.end_ns ELSE w.end_ns END AS load_end_ns,
    CASE WHEN w.request IS NOT NULL THEN 'yes' WHEN c.request IS NOT NULL THEN 'no' END AS asynchronous,
    d.first_token_ns, d.external_cached_tokens AS loaded_tokens,
    CASE WHEN coalesce(a.host_clock, 0) = coalesce(b.host_clock, 0) THEN 0 ELSE a.uncertainty_ns + b.uncertainty_ns END
        AS uncertainty_ns
FROM pair JOIN request p ON p.request = pair.prefill_request JOIN request d ON d.request = pair.decode_request
LEFT JOIN place a ON a.process_id = p.engine_id LEFT JOIN place b ON b.process_id = d.engine_id
LEFT JOIN waited w ON w.request = d.request LEFT JOIN called c ON c.request = d.request
