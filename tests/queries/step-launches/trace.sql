-- Engine 1 has two workers. Step 1 is the first; step 2 follows in 10 ms, step 3 in 1 and step 4 in 30; step 5 is scheduled ahead of step 4's results.
-- Step 4 has two passes, as of microbatches. Step 6 has no tokens, step 7 no pass. Engine 2 does not tell modes.
INSERT INTO step_schedule BY NAME SELECT
    engine_id, step, start_ms * 1000000 AS start_ns, prompt AS prefill_tokens, chunk AS chunked_prefill_tokens, decode AS decode_tokens,
    resumed AS resumed_tokens
FROM (VALUES
    (1, 1, 0, 600, 0, 0, 0), (1, 2, 40, 0, 500, 4, 0), (1, 3, 61, 0, 0, 4, 60), (1, 4, 100, 0, 0, 4, 0), (1, 5, 105, 0, 0, 4, 0),
    (1, 6, 120, 0, 0, 0, 0), (1, 7, 130, 0, 0, 4, 0), (2, 1, 0, 0, 0, 1, 0)
) AS t(engine_id, step, start_ms, prompt, chunk, decode, resumed);
INSERT INTO step_update (engine_id, step, update_ns, end_ns) VALUES
    (1, 1, 30000000, 30000000), (1, 2, 60000000, 60000000), (1, 3, 70000000, 70000000), (1, 4, 110000000, 110000000),
    (1, 5, 115000000, 115000000), (1, 6, 121000000, 121000000), (1, 7, 140000000, 140000000), (2, 1, 1000000, 1000000);
INSERT INTO forward BY NAME SELECT
    engine_id, step, process_id, start_ms * 1000000 AS start_ns, (start_ms + took_ms) * 1000000 AS end_ns, tokens, mode::e_graph_mode AS graph_mode
FROM (VALUES
    (1, 1, 10, 1, 24, 600, 'eager'), (1, 1, 11, 1, 26, 600, 'eager'), (1, 2, 10, 41, 20, 504, 'eager'), (1, 2, 11, 41, 18, 504, 'eager'),
    (1, 3, 10, 62, 8, 64, 'piecewise'), (1, 3, 11, 62, 8, 64, 'piecewise'), (1, 4, 10, 101, 1, 2, 'full'), (1, 4, 10, 102, 2, 2, 'full'),
    (1, 4, 11, 101, 1, 2, 'full'), (1, 4, 11, 102, 1, 2, 'full'), (1, 5, 10, 106, 1, 4, 'full'), (1, 5, 11, 106, 1, 4, 'full'),
    (1, 6, 10, 120, 1, 0, 'eager'), (2, 1, 12, 0, 1, 1, NULL)
) AS t(engine_id, step, process_id, start_ms, took_ms, tokens, mode);
