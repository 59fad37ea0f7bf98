-- A pool of 10 blocks of 8 slots. Request 1, 10 tokens of prompt and 3 of output, stores 10, 11 and 12 tokens in steps 1 to 3
-- and ends. Request 2, 20 and 5 tokens, stores 20 in step 2, gets nothing in step 3, stores 21 in step 4 and runs on. They
-- share their first block. Engine 2 has two KV cache groups.
-- Slots by hand, in all 4 steps: blocks of 8: 3 * 16 + 3 * 24 = 120; of 16: 48 + 96; of 32: 192; max_model_len: 6 * 64.
-- Powers of two of 13 and 25: 3 * 16 + 3 * 32; of the outputs 3 and 5: 3 * (10 + 4) + 3 * (20 + 8). Stored: 33 + 61 = 94.
INSERT INTO engine BY NAME SELECT * FROM (VALUES (1, 8, 10, 64, 1), (2, 8, 10, 64, 2))
    AS e(engine_id, block_size_tokens, blocks, max_model_len, kv_groups);
INSERT INTO request BY NAME SELECT * FROM (VALUES (1, 10, 3), (2, 20, 5), (3, 5, 1)) AS r(request, prompt_tokens, output_tokens);
INSERT INTO step_schedule BY NAME SELECT * FROM (VALUES
    (1, 1, 1000, 2), (1, 2, 2000, 4), (1, 3, 3000, 4), (1, 4, 4000, 3), (2, 1, 1000, 2)
) AS s(engine_id, step, scheduled_ns, used_blocks);
INSERT INTO step_request BY NAME SELECT * FROM (VALUES
    (1, 1, 1, 10, 0), (1, 2, 1, 1, 10), (1, 3, 1, 1, 11), (1, 2, 2, 12, 8), (1, 4, 2, 1, 20), (2, 1, 3, 5, 0)
) AS r(engine_id, step, request, scheduled_tokens, computed_tokens);
INSERT INTO request_event BY NAME SELECT 1 AS engine_id, 3500 AS time_ns, 1 AS request, 'finish'::e_request_op AS op;
