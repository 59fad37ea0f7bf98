-- The trace of kv-groups, without refusals. -- A pool of 10 blocks of 4 slots; groups of full attention (0) and of a window of 4 (1). Request 1 stores 6 tokens in blocks
-- 1, 2 and 3, 4; then 9 tokens, with blocks 5 and 6, and gives back block 3, which fell out of the window. It ends, and
-- request 2 finds block 1 and takes blocks 2 and 3 anew: block 2 was cached and is evicted for it. Engine 2 has one group
-- and no table of it.
INSERT INTO engine BY NAME SELECT * FROM (VALUES (1, 10, 4, 2), (2, 10, 4, 1)) AS e(engine_id, blocks, block_size_tokens, kv_groups);
INSERT INTO kv_group VALUES (1, 0, 'full', 4, 8, NULL), (1, 1, 'window', 4, 16, 4);
INSERT INTO step_request BY NAME SELECT * FROM (VALUES
    (1, 1, 1, 6, 0), (1, 2, 1, 3, 6), (1, 3, 2, 3, 4)
) AS r(engine_id, step, request, scheduled_tokens, computed_tokens);
INSERT INTO step_schedule BY NAME SELECT 1 AS engine_id, * FROM (VALUES (1, 16000000), (2, 21000000), (3, 46000000)) AS s(step, scheduled_ns);
INSERT INTO block_table BY NAME SELECT 1 AS engine_id, * FROM (VALUES
    (1, 1, 0, 'set'::e_table_op, 0, 1), (1, 1, 0, 'set', 1, 2), (1, 1, 1, 'set', 0, 3), (1, 1, 1, 'set', 1, 4),
    (2, 1, 0, 'append', 2, 5), (2, 1, 1, 'append', 2, 6),
    (3, 2, 0, 'set', 0, 1), (3, 2, 0, 'set', 1, 2), (3, 2, 1, 'set', 0, 0), (3, 2, 1, 'set', 1, 3)
) AS t(step, request, kv_group, op, position, block_id);
INSERT INTO request_event BY NAME SELECT 1 AS engine_id, * FROM (VALUES
    (15000000, 1, 1, 'schedule'::e_request_op), (30000000, 2, 1, 'finish'), (45000000, 3, 2, 'schedule')
) AS e(time_ns, step, request, op);
INSERT INTO block_event BY NAME SELECT 1 AS engine_id, 0 AS pool, * FROM (VALUES
    (10000000, 1, 1, 'allocate'::e_block_op, 1, 1, NULL, 0), (10000000, 1, 2, 'allocate', 1, 1, NULL, 0),
    (10000000, 1, 3, 'allocate', 1, 1, NULL, 0), (10000000, 1, 4, 'allocate', 1, 1, NULL, 0),
    (15000000, 1, 1, 'cache', 1, 1, 101, 0), (15000000, 1, 3, 'cache', 1, 1, 101, 1),
    (20000000, 2, 3, 'free', 0, 1, NULL, 0),
    (20000000, 2, 5, 'allocate', 1, 1, NULL, 0), (20000000, 2, 6, 'allocate', 1, 1, NULL, 0),
    (25000000, 2, 2, 'cache', 1, 1, 102, 0),
    (30000000, 2, 1, 'free', 0, 1, NULL, 0), (30000000, 2, 2, 'free', 0, 1, NULL, 0),
    (30000000, 2, 4, 'free', 0, 1, NULL, 0), (30000000, 2, 5, 'free', 0, 1, NULL, 0),
    (30000000, 2, 6, 'free', 0, 1, NULL, 0),
    (40000000, 3, 1, 'hit', 1, 2, NULL, 0),
    (40000000, 3, 2, 'evict', 0, 2, 102, 0), (40000000, 3, 2, 'allocate', 1, 2, NULL, 0),
    (40000000, 3, 3, 'evict', 0, 2, 101, 1), (40000000, 3, 3, 'allocate', 1, 2, NULL, 0),
    (50000000, 3, 2, 'cache', 1, 2, 103, 0)
) AS b(time_ns, step, block_id, op, ref_count, request, block_hash, kv_group);
