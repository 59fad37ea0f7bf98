-- Wall time = 2 ms + 10 us a token, exactly, in decode-only steps 2 to 4; prefill steps 5 and 6 (one of them resumed
-- tokens) lie on the same line. Step 1 is a slow warm-up, step 7 is empty, step 8 has no results.
-- Engine 2 has equal steps only: no slope can be had. Engine 3 only prefills: 0.9 ms + 10 us a token.
-- Engine 4 is asynchronous: a decode takes 10 ms, and step 4 delays the results of step 3 by 15 ms.
INSERT INTO step_schedule BY NAME SELECT
    engine_id, start_ns, start_ns AS scheduled_ns, step, 0 AS prefill_requests, prefill AS prefill_tokens,
    0 AS chunked_prefill_requests, 0 AS chunked_prefill_tokens, 0 AS decode_requests, decode AS decode_tokens,
    0 AS resumed_requests, resumed AS resumed_tokens
FROM (VALUES
    (1, 1, 0, 0, 100, 0),
    (1, 2, 900000000, 0, 1, 0),
    (1, 3, 1000000000, 0, 2, 0),
    (1, 4, 1100000000, 0, 3, 0),
    (1, 5, 1200000000, 100, 2, 0),
    (1, 6, 1300000000, 0, 1, 49),
    (1, 7, 1400000000, 0, 0, 0),
    (1, 8, 1500000000, 0, 5, 0),
    (2, 1, 0, 0, 4, 0),
    (2, 2, 100000000, 0, 4, 0),
    (3, 1, 0, 10, 0, 0),
    (3, 2, 100000000, 30, 0, 0),
    (4, 1, 0, 0, 1, 0),
    (4, 2, 8000000, 0, 1, 0),
    (4, 3, 18000000, 0, 1, 0),
    (4, 4, 28000000, 129, 1, 0)
) AS t(engine_id, step, start_ns, prefill, decode, resumed);
INSERT INTO step_update (engine_id, step, update_ns, end_ns) VALUES
    (1, 1, 500000000, 500000000),
    (1, 2, 902010000, 902010000),
    (1, 3, 1002020000, 1002020000),
    (1, 4, 1102030000, 1102030000),
    (1, 5, 1203020000, 1203020000),
    (1, 6, 1302500000, 1302500000),
    (1, 7, 1400100000, 1400100000),
    (2, 1, 3000000, 3000000),
    (2, 2, 105000000, 105000000),
    (3, 1, 1000000, 1000000),
    (3, 2, 101200000, 101200000),
    (4, 1, 10000000, 10000000),
    (4, 2, 20000000, 20000000),
    (4, 3, 45000000, 45000000),
    (4, 4, 95000000, 95000000);
