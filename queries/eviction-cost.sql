-- Which evictions threw away a prefix that was needed again, and what did that cost?
--
-- One row per lookup whose first missing block had been in the cache and was lost: evicted for another allocation,
-- evicted from an offload tier too, or emptied by a reset. The cost is that of the tokens that were known and had to be
-- computed again, by query cost-model; beside it, what loading their bytes would have cost at this run's measured rate
-- (table transfer_rate), NULL if nothing was loaded, or at an assumed one. Bytes are those of one rank.
--
-- group: Preemption and eviction
-- needs: prefix_miss
-- param: assumed_gb_per_s DOUBLE = NULL | A rate to assume for fetching, in 10^9 bytes a second.
-- key: time_ns, request, verdict, evicted_for, lost_tokens, gone_ms, recompute_ms
-- worst: recompute_ms
-- column: engine_id recorded | The engine.
-- column: time_ns [ns] recorded | When the lookup missed, UNIX time.
-- column: request recorded | Key of table `request`.
-- column: external_id recorded | The id the client knows.
-- column: resumed recorded | The request had been preempted before.
-- column: verdict derived | evicted, evicted_from_tier or reset.
-- column: evicted_for recorded | The request whose allocation took the block; NULL if none did.
-- column: lost_tokens [tokens] derived | Tokens of the prefix that were known and had to be computed again.
-- column: lost_blocks [blocks] derived | Their blocks.
-- column: lost_bytes [bytes] derived | Bytes of those blocks.
-- column: idle_ms [ms] derived | From the block's last use to its eviction.
-- column: gone_ms [ms] derived | From the eviction to this lookup: how much longer it should have been kept.
-- column: recompute_ms [ms] derived | Price of lost_tokens by the cost model.
-- column: fetch_ms [ms] derived | Time to load lost_bytes at this run's measured rate.
-- column: assumed_fetch_ms [ms] inferred | The same at assumed_gb_per_s.

WITH lost AS (
    SELECT
        m.*,
        m.avoidable_tokens // e.block_size_tokens AS lost_blocks,
        m.avoidable_tokens // e.block_size_tokens * e.block_bytes AS lost_bytes
    FROM prefix_miss m LEFT JOIN engine e USING (engine_id)
    WHERE m.verdict IN ('evicted', 'evicted_from_tier', 'reset')
)
SELECT
    l.engine_id,
    l.time_ns,
    l.request,
    r.external_id,
    l.resumed,
    l.verdict,
    l.other_request AS evicted_for,
    l.avoidable_tokens AS lost_tokens,
    l.lost_blocks,
    l.lost_bytes,
    (l.lost_ns - l.released_ns) / 1e6 AS idle_ms,
    (l.time_ns - l.lost_ns) / 1e6 AS gone_ms,
    l.avoidable_ns / 1e6 AS recompute_ms,
    l.lost_bytes / t.bytes_per_s * 1e3 AS fetch_ms,
    l.lost_bytes / ($assumed_gb_per_s * 1e6) AS assumed_fetch_ms
FROM lost l
LEFT JOIN transfer_rate t ON t.engine_id = l.engine_id AND t.direction = 'load'
LEFT JOIN request r ON r.request = l.request
ORDER BY l.engine_id, l.time_ns, l.request
