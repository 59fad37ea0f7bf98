-- Requests 1 (cold) and 2 (it hits 1's block 1) begin alike; so does 3, but by then the content was gone from block 1, and
-- it caches it again in block 2. 4 is shorter than a block. 5 has prefix caching off. 6's blocks were not recorded. 7
-- never generates. 8 gets the same beginning from a connector, in block 3.
INSERT INTO engine (engine_id, block_size_tokens, blocks, policy, prefix_caching) VALUES (1, 16, 100, 'fcfs', true);
INSERT INTO request BY NAME
SELECT request, 1 AS engine_id, session, arrival * 1000000::BIGINT AS arrival_ns, scheduled * 1000000::BIGINT AS scheduled_ns,
    first_token * 1000000::BIGINT AS first_token_ns, finished * 1000000::BIGINT AS finished_ns, prompt_tokens,
    local AS local_cached_tokens, external AS external_cached_tokens
FROM (VALUES
    (1, NULL, 0, 100, 200, 900, 32, 0, NULL),
    (2, NULL, 1000, 1100, 1200, 1900, 32, 16, NULL),
    (3, NULL, 2000, 2200, 2400, 2900, 32, 0, NULL),
    (4, NULL, 3000, 3100, 3300, 3900, 8, 0, NULL),
    (5, NULL, 4000, 4100, 4500, 4900, 32, 0, NULL),
    (6, NULL, 5000, 5100, 5600, 5900, 32, 0, NULL),
    (7, NULL, 6000, 6100, NULL, NULL, 32, 0, NULL),
    (8, NULL, 7000, 7100, 7300, 7900, 64, 0, 32)
) t(request, session, arrival, scheduled, first_token, finished, prompt_tokens, local, external);
INSERT INTO block_table (engine_id, step, request, kv_group, op, position, block_id) VALUES
    (1, 1, 1, 0, 'set', 0, 1), (1, 1, 1, 0, 'set', 1, 4),
    (1, 11, 2, 0, 'set', 0, 1),
    (1, 22, 3, 0, 'set', 0, 2),
    (1, 31, 4, 0, 'set', 0, 9),
    (1, 41, 5, 0, 'set', 0, 9),
    (1, 71, 8, 0, 'set', 0, 3);
INSERT INTO block_event (engine_id, time_ns, block_id, op, ref_count, request, block_hash, kv_group, pool) VALUES
    (1, 150000000, 1, 'cache', 1, 1, 5, 0, 0),
    (1, 2100000000, 1, 'evict', 0, 3, 5, 0, 0),
    (1, 2300000000, 2, 'cache', 1, 3, 5, 0, 0),
    (1, 7150000000, 3, 'cache', 1, NULL, 5, 0, 0);
INSERT INTO prefix_lookup (engine_id, request, enabled, admitted, resumed)
SELECT 1, request, request <> 5, true, false FROM request;
