-- Decode-only steps 1 to 3 with 1, 2 and 3 tokens take 2, 4 and 3 ms: the line is 2 ms + 0.5 ms a token (2.5, 3, 3.5). Steps 4 and 5 have
-- prefill (one chunked, one resumed): 2 points are on their line. Step 6 is empty, step 7 has no results. Engine 2 has
-- one step: no line. Engine 3 is asynchronous: step 2 delays the results of step 1 by 15 ms.
INSERT INTO step_schedule BY NAME SELECT
    engine_id, start_ns, start_ns AS scheduled_ns, step, 0 AS prefill_tokens, chunked AS chunked_prefill_tokens,
    decode AS decode_tokens, resumed AS resumed_tokens
FROM (VALUES
    (1, 1, 100000000, 0, 1, 0),
    (1, 2, 200000000, 0, 2, 0),
    (1, 3, 300000000, 0, 3, 0),
    (1, 4, 400000000, 9, 1, 0),
    (1, 5, 500000000, 0, 1, 19),
    (1, 6, 600000000, 0, 0, 0),
    (1, 7, 700000000, 0, 1, 0),
    (2, 1, 100000000, 0, 4, 0),
    (3, 1, 0, 0, 1, 0),
    (3, 2, 8000000, 0, 1, 0),
    (3, 3, 18000000, 129, 1, 0)
) AS t(engine_id, step, start_ns, chunked, decode, resumed);
INSERT INTO step_update (engine_id, step, update_ns, end_ns) VALUES
    (1, 1, 102000000, 102000000),
    (1, 2, 204000000, 204000000),
    (1, 3, 303000000, 303000000),
    (1, 4, 410000000, 410000000),
    (1, 5, 530000000, 530000000),
    (1, 6, 601000000, 601000000),
    (2, 1, 107000000, 107000000),
    (3, 1, 10000000, 10000000),
    (3, 2, 35000000, 35000000),
    (3, 3, 85000000, 85000000);
