-- Blocks of 4 slots. Request 1 stores 6, 7, 8 and 9 tokens in steps 1 to 4 and ends. Request 2 comes in step 2 with its first
-- block, 4 tokens, shared with request 1: 9 tokens in 3 blocks. In step 3 it gets no tokens and keeps them, step 4 preempts
-- it, in step 5 it computes its 9 tokens again, then it ends. In step 6 only a pinned block is in use. Engine 2 has two KV
-- cache groups, of full attention and a window; engine 3's second group holds states; engine 4's window has blocks of 8 slots.
INSERT INTO engine BY NAME SELECT * FROM (VALUES (1, 4, 1), (2, 4, 2), (3, 4, 2), (4, 4, 2)) AS e(engine_id, block_size_tokens, kv_groups);
INSERT INTO kv_group BY NAME SELECT * FROM (VALUES (2, 0, 'full', 4), (2, 1, 'window', 4), (3, 0, 'full', 4), (3, 1, 'state', 4),
    (4, 0, 'full', 4), (4, 1, 'window', 8))
AS g(engine_id, kv_group, kind, block_size_tokens);
INSERT INTO step_schedule BY NAME SELECT * FROM (VALUES
    (1, 1, 1000, 2), (1, 2, 2000, 4), (1, 3, 3000, 4), (1, 4, 4000, 3), (1, 5, 5000, 3), (1, 6, 6000, 1), (2, 1, 1000, 4),
    (3, 1, 1000, 4), (4, 1, 1000, 3)
) AS s(engine_id, step, scheduled_ns, used_blocks);
INSERT INTO step_request BY NAME SELECT * FROM (VALUES
    (1, 1, 1, 'prefill'::e_phase, 6, 0, 2),
    (1, 2, 1, 'decode', 1, 6, 0), (1, 2, 2, 'prefill', 5, 4, 3),
    (1, 3, 1, 'decode', 1, 7, 0),
    (1, 4, 1, 'decode', 1, 8, 1),
    (1, 5, 2, 'resumed', 9, 0, 3),
    (2, 1, 3, 'prefill', 5, 0, 4),
    (3, 1, 4, 'prefill', 5, 0, 4),
    (4, 1, 5, 'prefill', 5, 0, 3)
) AS r(engine_id, step, request, phase, scheduled_tokens, computed_tokens, new_blocks);
INSERT INTO request_event BY NAME SELECT 1 AS engine_id, * FROM (VALUES
    (3900, 4, 2, 'preempt'::e_request_op, 3), (4500, 4, 1, 'finish', 3), (5500, 5, 2, 'finish', 3)
) AS e(time_ns, step, request, op, blocks);
INSERT INTO block_table BY NAME SELECT 1 AS step, 'set'::e_table_op AS op, * FROM (VALUES
    (3, 4, 0, 0, 1), (3, 4, 0, 1, 2), (3, 4, 1, 0, 3), (3, 4, 1, 1, 4), (4, 5, 0, 0, 1), (4, 5, 0, 1, 2), (4, 5, 1, 0, 3)
) AS t(engine_id, request, kv_group, position, block_id);
INSERT INTO block_event BY NAME
SELECT engine_id, 900 AS time_ns, step, block_id, 'allocate'::e_block_op AS op, 1 AS ref_count, request, 0 AS pool
FROM block_table;
