-- 10 blocks of 16 slots with the null block. Layer 0: 2 * 10 * 16 * 8 * 128 elements of 2 bytes, 4096 bytes a token; layer 1:
-- 10 * 2 * 16 * 1 * 4 of 4 bytes, 32 a token. Step 1 prefills 40 tokens; steps 2 and 4 decode: 41 and 43 tokens of context;
-- step 3 is mixed: request 1 with 42 tokens, and 16 tokens of request 2 behind 16 cached ones.
INSERT INTO engine BY NAME SELECT 1 AS engine_id, 16 AS block_size_tokens, 9 AS blocks;
INSERT INTO kv_layer BY NAME SELECT 2 AS process_id, * FROM (VALUES
    (0, '[2, 10, 16, 8, 128]', 'bfloat16'), (1, '[10, 2, 16, 1, 4]', 'float32')) AS l(layer, shape, dtype);
INSERT INTO step_request BY NAME SELECT 1 AS engine_id, * FROM (VALUES
    (1, 1, 'prefill'::e_phase, 40, 0), (2, 1, 'decode', 1, 40), (3, 1, 'decode', 1, 41), (3, 2, 'prefill', 16, 16),
    (4, 1, 'decode', 1, 42)
) AS r(step, request, phase, scheduled_tokens, computed_tokens);
INSERT INTO kv_window BY NAME SELECT 2 AS process_id, 1 AS engine_id, * FROM (VALUES
    (1, 0, 'write'::e_window_kind, 900, 980), (1, 0, 'attention', 1000, 2000), (2, 0, 'attention', 3000, 3100),
    (2, 1, 'attention', 3200, 3210), (3, 0, 'attention', 4000, 4200), (4, 0, 'attention', 5000, 5200)
) AS w(step, layer, kind, start_ns, end_ns);
