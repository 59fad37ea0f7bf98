-- Blocks of 16 tokens, tiles of 32. Step 3 prefills and reads nothing. In step 4, 3.999 ms later, a program of request 1
-- reads three blocks by two tiles; one of request 2 reads a block whose V it turned to later than its K ended. Head 1 and
-- layer 1 are not asked for.
INSERT INTO engine BY NAME SELECT 1 AS engine_id, 16 AS block_size_tokens, 40 AS blocks;
INSERT INTO tile_step BY NAME SELECT * FROM (VALUES (7, 1, 3, 1000000), (7, 1, 4, 4900000)) AS t(process_id, engine_id, step, opened_ns);
INSERT INTO batch_row BY NAME SELECT 7 AS process_id, 1 AS engine_id, 3 AS step, * FROM (VALUES (0, 1), (1, 2)) AS b(row, request);
INSERT INTO gpu_block_list BY NAME SELECT 7 AS process_id, 1 AS engine_id, 16 AS kernel_block_tokens, 0 AS layer, * FROM (VALUES
    (4, 0, 0, 5), (4, 0, 16, 6), (4, 0, 32, 3), (4, 1, 0, 9)) AS l(step, row, first_token, kernel_block);
INSERT INTO step_request BY NAME SELECT 1 AS engine_id, * FROM (VALUES
    (3, 1, 'prefill'::e_phase), (3, 2, 'prefill'), (4, 1, 'decode'), (4, 2, 'decode')) AS s(step, request, phase);
INSERT INTO gpu_program BY NAME SELECT 7 AS process_id, 1 AS engine_id, 4 AS step, 32 AS tile_tokens, * FROM (VALUES
    (0, 0, 0, 0, 4999000), (1, 0, 1, 0, 4999000), (2, 1, 0, 0, 5100000), (3, 0, 0, 1, 5000000))
    AS p(program, layer, head, row, start_ns);
INSERT INTO gpu_tile BY NAME SELECT 7 AS process_id, 1 AS engine_id, 4 AS step, * FROM (VALUES
    (0, 0, 5000000, 5001000, NULL, 5001500), (0, 1, 5001500, 5002500, NULL, 5003500), (1, 0, 5000000, 5001000, NULL, 5001500),
    (2, 0, 5100000, 5101000, NULL, 5101500), (3, 0, 5000000, 5002000, 5004000, 5005000))
    AS t(program, tile, start_ns, k_ns, v_start_ns, v_ns);
