-- A budget of 4 blocks of 16 tokens, 2 chunks of 3 blocks of 10 bytes in host memory. Two requests: 100 tokens looked up,
-- 48 of them found on the GPU, 32 beyond. Six contents were cached, one of them twice, one in another pool; three were
-- evicted. Of what the second request computed, 25 tokens had been lost; what was lost before a resumption is not of a
-- first admission.
INSERT INTO engine (engine_id, block_size_tokens, blocks, policy, prefix_caching, connector, block_bytes) VALUES
    (1, 16, 4, 'fcfs', true, 'C', 10);
INSERT INTO connector (process_id, connector, role, tier, capacity_blocks, blocks_per_chunk) VALUES (1, 'C', 'scheduler', 'cpu', 2, 3);
INSERT INTO request (request, engine_id, arrival_ns, first_token_ns, preemptions) VALUES
    (1, 1, 0, 100000000, 1), (2, 1, 2000000000, 2300000000, 0);
INSERT INTO prefix_lookup (engine_id, request, queried_tokens, local_hit_tokens, external_hit_tokens, admitted, resumed, enabled)
VALUES (1, 1, 40, 0, NULL, true, false, true), (1, 2, 60, 48, 32, false, false, true), (1, 2, 60, 48, 32, true, false, true),
    (1, 1, 50, 32, 0, true, true, true);
INSERT INTO prefix_miss (engine_id, request, resumed, verdict, avoidable_tokens) VALUES
    (1, 1, false, 'never_stored', 0), (1, 2, false, 'evicted', 25), (1, 1, true, 'evicted', 16);
INSERT INTO block_event (engine_id, time_ns, block_id, op, block_hash, kv_group, pool) VALUES
    (1, 1, 1, 'cache', 11, 0, 0), (1, 1, 2, 'cache', 12, 0, 0), (1, 1, 3, 'cache', 13, 0, 0), (1, 1, 4, 'cache', 14, 0, 0),
    (1, 2, 1, 'evict', 11, 0, 0), (1, 2, 2, 'evict', 12, 0, 0), (1, 3, 1, 'cache', 15, 0, 0), (1, 3, 2, 'cache', 11, 0, 0),
    (1, 4, 3, 'evict', 13, 0, 0), (1, 5, 3, 'cache', 16, 0, 0), (1, 6, 1, 'cache', 17, 0, 1), (1, 6, 1, 'evict', 17, 0, 1);
