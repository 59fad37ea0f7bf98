-- Worker 1, layer 0: a program of three tiles in order and one of two in step 1; layer 1: one whose second tile came first.
INSERT INTO gpu_program BY NAME SELECT 1 AS process_id, 1 AS engine_id, 1 AS step, * FROM (VALUES
    (0, 0, 16), (1, 0, 16), (2, 1, 32)) AS p(program, layer, tile_tokens);
INSERT INTO gpu_tile BY NAME SELECT 1 AS process_id, 1 AS engine_id, 1 AS step, * FROM (VALUES
    (0, 0, 1000, 2000, 2100), (0, 1, 2100, 2400, 2500), (0, 2, 2500, 2800, 2900),
    (1, 0, 1000, 2000, 2100), (1, 1, 2100, 2400, 2500),
    (2, 0, 5000, 9000, 9200), (2, 1, 5000, 6000, 6200)) AS t(program, tile, start_ns, k_ns, v_ns);
