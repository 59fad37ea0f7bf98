-- Step 1 of worker 1. Request 1 prefills with two programs of one head, which read tiles 0, 1, 2 and 0, 1 side by side; by time
-- 0 0 1 1 2: two of four pairs increase. Its blocks are 7, 9 and 3. Request 2 decodes and reads tile 1 before tile 0, then
-- tile 2; no program listed its blocks.
INSERT INTO tile_step BY NAME SELECT 1 AS process_id, 1 AS engine_id, 1 AS step;
INSERT INTO batch_row BY NAME SELECT 1 AS process_id, 1 AS engine_id, 1 AS step, unnest([0, 1]) AS row, unnest([1, 2]) AS request;
INSERT INTO step_request BY NAME SELECT 1 AS engine_id, 1 AS step, * FROM (VALUES
    (1, 'prefill'::e_phase), (2, 'decode')) AS r(request, phase);
INSERT INTO gpu_program BY NAME SELECT 1 AS process_id, 1 AS engine_id, 1 AS step, 0 AS layer, 0 AS head, 16 AS tile_tokens, *
FROM (VALUES (0, 0, 0), (1, 0, 1), (2, 1, 0)) AS p(program, row, query_block);
INSERT INTO gpu_tile BY NAME SELECT 1 AS process_id, 1 AS engine_id, 1 AS step, * FROM (VALUES
    (0, 0, 100), (0, 1, 200), (0, 2, 300), (1, 0, 150), (1, 1, 250), (2, 0, 100), (2, 1, 90), (2, 2, 200)
) AS t(program, tile, k_ns);
INSERT INTO gpu_block_list BY NAME SELECT 1 AS process_id, 1 AS engine_id, 1 AS step, 0 AS layer, 0 AS row,
    unnest([0, 16, 32]) AS first_token, unnest([7, 9, 3]) AS kernel_block, 16 AS kernel_block_tokens;
