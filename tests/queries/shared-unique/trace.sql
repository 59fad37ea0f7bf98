-- Requests 1 and 2 begin alike; 3 begins with something else; 4 is shorter than a block; 5's blocks were not recorded.
-- 6 and 7 begin alike and are admitted in one step: 7 finds what 6 has just stored.
INSERT INTO engine (engine_id, block_size_tokens, blocks, policy, prefix_caching) VALUES (1, 16, 100, 'fcfs', true);
INSERT INTO request BY NAME
SELECT request, 1 AS engine_id, session, arrival * 1000000::BIGINT AS arrival_ns, scheduled * 1000000::BIGINT AS scheduled_ns,
    first_token * 1000000::BIGINT AS first_token_ns, finished * 1000000::BIGINT AS finished_ns, prompt_tokens,
    local AS local_cached_tokens, external AS external_cached_tokens
FROM (VALUES
    (1, 's1', 0, 100, 200, 900, 40, 0, NULL),
    (2, 'u1', 1000, 1100, 1100, 1900, 44, 16, NULL),
    (3, 's2', 2000, 2200, 2400, 2900, 40, 0, NULL),
    (4, NULL, 3000, 3100, 3300, 3900, 8, 0, NULL),
    (5, 'u2', 4000, 4100, 4500, 4900, 100, 50, NULL),
    (6, 's3', 5000, 6100, 6300, 6900, 40, 0, NULL),
    (7, 's4', 6000, 6100, 6300, 6900, 40, 16, NULL)
) t(request, session, arrival, scheduled, first_token, finished, prompt_tokens, local, external);
INSERT INTO block_table (engine_id, step, request, kv_group, op, position, block_id) VALUES
    (1, 1, 1, 0, 'set', 0, 1),
    (1, 11, 2, 0, 'set', 0, 1),
    (1, 22, 3, 0, 'set', 0, 2),
    (1, 61, 6, 0, 'set', 0, 3),
    (1, 61, 7, 0, 'set', 0, 3);
INSERT INTO block_event (engine_id, time_ns, block_id, op, ref_count, request, block_hash, kv_group, pool) VALUES
    (1, 150000000, 1, 'cache', 1, 1, 5, 0, 0),
    (1, 2300000000, 2, 'cache', 1, 3, 7, 0, 0),
    (1, 6100000200, 3, 'cache', 1, 6, 9, 0, 0);
INSERT INTO prefix_lookup (engine_id, time_ns, step, request, admitted, enabled) VALUES
    (1, 6100000100, 61, 6, true, true), (1, 6100000300, 61, 7, true, true);
