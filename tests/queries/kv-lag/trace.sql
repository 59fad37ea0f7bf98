-- Worker 1. Row 0 of the batch is request 1, which prefills in step 1 and decodes in step 2; row 1 is request 2, which decodes.
-- The rows do not change, so they are written once. Lags of reads: 100 and 300 ns in prefill; 64, 32 and 96 in decode.
INSERT INTO tile_step BY NAME SELECT 1 AS process_id, 1 AS engine_id, unnest([1, 2]) AS step;
INSERT INTO batch_row BY NAME SELECT 1 AS process_id, 1 AS engine_id, 1 AS step, unnest([0, 1]) AS row, unnest([1, 2]) AS request;
INSERT INTO step_request BY NAME SELECT 1 AS engine_id, * FROM (VALUES
    (1, 1, 'prefill'::e_phase), (1, 2, 'decode'), (2, 1, 'decode'), (2, 2, 'decode')) AS r(step, request, phase);
INSERT INTO gpu_program BY NAME SELECT 1 AS process_id, 1 AS engine_id, 0 AS layer, 0 AS head, * FROM (VALUES
    (1, 0, 0), (1, 1, 1), (2, 0, 0)) AS p(step, program, row);
INSERT INTO gpu_tile BY NAME SELECT 1 AS process_id, 1 AS engine_id, * FROM (VALUES
    (1, 0, 0, 1000, 1100), (1, 0, 1, 1200, 1500), (1, 1, 0, 1000, 1064), (2, 0, 0, 2000, 2032), (2, 0, 1, 2100, 2196)
) AS t(step, program, tile, k_ns, v_ns);
INSERT INTO gpu_write BY NAME SELECT 1 AS process_id, 1 AS engine_id, 1 AS step, 0 AS layer, * FROM (VALUES
    (0, 500, 532), (1, 500, 500)) AS w(token, k_ns, v_ns);
