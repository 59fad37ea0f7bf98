-- Blocks of 16. Worker 2 of engine 1: step 1 reads 3 blocks of request 1 and 1 of request 2, step 2 reads 3 of request 1. Of
-- step 1 the programs are there: two of request 1, from 0 to 100 ns and from 50 to 150, one of request 2 from 100 to 200.
-- Engine 5 has no windows: request 3, 20 tokens in 2 blocks.
INSERT INTO engine BY NAME SELECT unnest([1, 5]) AS engine_id, 16 AS block_size_tokens;
INSERT INTO step_request BY NAME SELECT * FROM (VALUES
    (1, 1, 1, 40, 0), (1, 1, 2, 1, 15), (1, 2, 1, 1, 40), (5, 1, 3, 20, 0)
) AS r(engine_id, step, request, scheduled_tokens, computed_tokens);
INSERT INTO kv_window BY NAME SELECT 2 AS process_id, 1 AS engine_id, 0 AS layer, * FROM (VALUES
    (1, 'write'::e_window_kind), (1, 'attention'), (2, 'attention')) AS w(step, kind);
INSERT INTO tile_step BY NAME SELECT 2 AS process_id, 1 AS engine_id, 1 AS step;
INSERT INTO gpu_program BY NAME SELECT 2 AS process_id, 1 AS engine_id, 1 AS step, 0 AS layer, * FROM (VALUES
    (0, 0, 0, 100), (1, 0, 50, 150), (2, 1, 100, 200)) AS p(program, row, start_ns, end_ns);
