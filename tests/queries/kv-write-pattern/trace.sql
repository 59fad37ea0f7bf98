-- Blocks of 16 tokens. Step 3: request 1 prefills into blocks 5 and 6 while request 2 decodes into block 9; step 4: both
-- decode, 3.99 ms later, and attention begins 0.01 ms before the writes. Worker 8 and layer 1 are not asked for.
INSERT INTO engine BY NAME SELECT 1 AS engine_id, 16 AS block_size_tokens, 40 AS blocks;
INSERT INTO tile_step BY NAME SELECT * FROM (VALUES (7, 1, 3), (7, 1, 4), (8, 1, 3)) AS t(process_id, engine_id, step);
INSERT INTO batch_row BY NAME SELECT 7 AS process_id, 1 AS engine_id, 3 AS step, * FROM (VALUES (0, 1), (1, 2)) AS b(row, request);
INSERT INTO gpu_block_list BY NAME SELECT 7 AS process_id, 1 AS engine_id, 16 AS kernel_block_tokens, 0 AS layer, * FROM (VALUES
    (3, 0, 0, 5), (3, 0, 16, 6), (3, 1, 0, 9), (4, 0, 0, 5), (4, 0, 16, 6), (4, 1, 0, 9))
    AS l(step, row, first_token, kernel_block);
INSERT INTO step_request BY NAME SELECT 1 AS engine_id, * FROM (VALUES
    (3, 1, 'prefill'::e_phase), (3, 2, 'decode'), (4, 1, 'decode'), (4, 2, 'decode')) AS s(step, request, phase);
INSERT INTO gpu_write BY NAME SELECT 7 AS process_id, 1 AS engine_id, * FROM (VALUES
    (3, 0, 80, 1000000, 1020000), (3, 0, 95, 1005000, 1040000), (3, 0, 96, 1010000, 1050000), (3, 0, 150, 1000000, 1030000),
    (3, 1, 80, 1500000, 1520000), (4, 0, 97, 5000000, 5020000), (4, 0, 151, 5001000, 5021000))
    AS w(step, layer, slot, start_ns, v_ns);
INSERT INTO gpu_write BY NAME SELECT 8 AS process_id, 1 AS engine_id, 3 AS step, 0 AS layer, 80 AS slot, 1 AS start_ns, 2 AS v_ns;
INSERT INTO gpu_program BY NAME SELECT 7 AS process_id, 1 AS engine_id, 4 AS step, 0 AS program, 0 AS layer, 4990000 AS start_ns;
