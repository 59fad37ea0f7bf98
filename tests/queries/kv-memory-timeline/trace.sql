-- Engine 1 is recorded: two steps of 100 blocks, the second preempts one request; its host tier of 10 blocks holds 2
-- blocks, stored at once, after the first step and 1 after an eviction. Engine 2 is imported with its steps: the second one resumes. Engine 3
-- has samples alone: one request is swapped out, then it comes back; then one more waits while one less runs.
INSERT INTO engine BY NAME SELECT 1 AS engine_id, 'tiny' AS model;
INSERT INTO engine_source BY NAME SELECT * FROM (VALUES (2, 'a', 'recompute'), (3, 'b', 'swap')) AS e(engine_id, name, preemption_mode);
INSERT INTO step_schedule BY NAME SELECT * FROM (VALUES
    (1, 1, 1000000000, 25, 75, 3, 1, 100, 0, 0, 0, 0, 0), (1, 2, 1100000000, 50, 50, 2, 2, 0, 0, 2, 0, 1, 0))
    AS s(engine_id, step, start_ns, used_blocks, free_blocks, running, waiting, prefill_tokens, chunked_prefill_tokens,
        decode_tokens, resumed_tokens, preempted_requests, resumed_requests);
INSERT INTO step_schedule BY NAME SELECT * FROM (VALUES (2, 1, 5000000000, 0, 0), (2, 2, 6000000000, 0, 1))
    AS s(engine_id, step, start_ns, preempted_requests, resumed_requests);
INSERT INTO step_update BY NAME SELECT * FROM (VALUES (1, 1, 1100000000), (1, 2, 1120000000), (2, 1, 5500000000), (2, 2, 6500000000))
    AS u(engine_id, step, end_ns);
INSERT INTO connector BY NAME SELECT 1 AS process_id, 'scheduler' AS role, 'cpu' AS tier, 10 AS capacity_blocks;
INSERT INTO tier_block BY NAME SELECT 1 AS engine_id, 'cpu'::e_tier AS tier, * FROM (VALUES
    (1050000000, 'write'::e_tier_op, 1), (1060000000, 'store', 1), (1060000000, 'store', 2),
    (1110000000, 'evict', 1)) AS b(time_ns, op, tier_block_id);
INSERT INTO engine_sample BY NAME SELECT * FROM (VALUES
    (2, 1, 1, 5500000000, 1000000000, 0.5, 0.0, 40.0, 1, 0, 1), (2, 2, 2, 6500000000, 1000000000, 0.9, 0.0, 90.0, 2, 0, 0),
    (3, 1, NULL, 1000000000, 1000000000, 0.9, 0.0, 50.0, 2, 0, 0), (3, 2, NULL, 2000000000, 1000000000, 0.4, 0.1, 20.0, 1, 1, 0),
    (3, 3, NULL, 3000000000, 1000000000, 0.9, 0.0, 30.0, 2, 0, 0), (3, 4, NULL, 4000000000, 1000000000, 0.5, 0.0, 25.0, 1, 0, 1))
    AS s(engine_id, sample, step, time_ns, interval_ns, gpu_usage, host_usage, tokens_per_s, running, swapped, waiting);
