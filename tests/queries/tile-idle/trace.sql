-- Step 1 of worker 1: layer 0 takes 200 ns. Request 1, in prefill, has two heads: tile 0 is read from 0 to 40 and from 20 to 60,
-- tile 1 from 40 to 100 and from 60 to 90: 60 ns each. Request 2 decodes and reads its only tile from 150 to 200.
INSERT INTO tile_step BY NAME SELECT 1 AS process_id, 1 AS engine_id, 1 AS step;
INSERT INTO batch_row BY NAME SELECT 1 AS process_id, 1 AS engine_id, 1 AS step, unnest([0, 1]) AS row, unnest([1, 2]) AS request;
INSERT INTO step_request BY NAME SELECT 1 AS engine_id, 1 AS step, * FROM (VALUES
    (1, 'prefill'::e_phase), (2, 'decode')) AS r(request, phase);
INSERT INTO gpu_program BY NAME SELECT 1 AS process_id, 1 AS engine_id, 1 AS step, 0 AS layer, * FROM (VALUES
    (0, 0, 0, 0, 100), (1, 0, 1, 20, 90), (2, 1, 0, 150, 200)) AS p(program, row, head, start_ns, end_ns);
INSERT INTO gpu_tile BY NAME SELECT 1 AS process_id, 1 AS engine_id, 1 AS step, * FROM (VALUES
    (0, 0, 0, 40), (0, 1, 40, 100), (1, 0, 20, 60), (1, 1, 60, 90), (2, 0, 150, 200)
) AS t(program, tile, start_ns, v_ns);
