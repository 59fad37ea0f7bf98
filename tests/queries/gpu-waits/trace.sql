-- Engine 1: steps of 10 ms, whose attention takes 9 in two layers, so gaps are 1 ms. Step 1 computes a prompt, whose attention ends 3 ms
-- sooner: the last layer's rest takes that long. Step 12 is 2 ms late, step 13 0.1. Step 21 begins 500 ms after the results before it: the
-- engine was idle. Step 24 decodes beside a prompt. From step 25 on 8 requests decode instead of 3, with gaps of 2 ms. Process 10 has all
-- steps, process 11 has step 12 in time. Engine 2 has two steps.
CREATE TEMP TABLE planned AS SELECT
    1 AS engine_id, n AS step,
    (n * 10 + CASE WHEN n >= 21 THEN 500 ELSE 0 END + CASE WHEN n >= 25 THEN n - 24 ELSE 0 END) * 1000000 AS begins_ns,
    CASE WHEN n >= 25 THEN 8 ELSE 3 END AS decodes
FROM range(1, 48) t(n);
INSERT INTO planned VALUES (2, 1, 0, 1), (2, 2, 10000000, 1);
INSERT INTO step_schedule BY NAME SELECT
    engine_id, step, begins_ns - 500000 AS start_ns, CASE WHEN engine_id = 1 AND step IN (1, 24) THEN 500 ELSE 0 END AS prefill_tokens,
    0 AS chunked_prefill_tokens, CASE WHEN engine_id = 1 AND step = 1 THEN 0 ELSE decodes END AS decode_tokens, 0 AS resumed_tokens
FROM planned;
INSERT INTO step_update BY NAME SELECT engine_id, step, begins_ns + 9400000 AS update_ns, begins_ns + 9500000 AS end_ns FROM planned;
INSERT INTO kv_window BY NAME SELECT
    engine_id, process_id, step, layer, 'attention'::e_window_kind AS kind, true AS observed,
    begins_ns + late_ns + layer * 4500000 AS start_ns,
    begins_ns + CASE WHEN layer = 0 THEN late_ns + 4500000 WHEN engine_id = 1 AND step = 1 THEN 6000000 ELSE 9000000 END AS end_ns
FROM (
    SELECT *, CASE WHEN engine_id = 1 AND step = 12 AND process_id = 10 THEN 2000000 WHEN engine_id = 1 AND step = 13 THEN 100000 ELSE 0 END AS late_ns
    FROM planned, (VALUES (10), (11)) p(process_id)
), range(2) l(layer)
WHERE engine_id = 1 OR process_id = 10;
DROP TABLE planned;
