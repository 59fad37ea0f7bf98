-- Engine 1 is recorded with chunked prefill and a budget of 200 tokens: a prompt of 100 in 50 ms, then it and a decode, then
-- decodes. Engine 2 is an imported log: a step of its warm-up, one of its benchmark, one whose tokens' kinds are unknown,
-- and one without tokens. Engine 3 is asynchronous: a decode takes 10 ms; the launch of step 4 delays the results of step 3 by 15 ms.
INSERT INTO engine BY NAME SELECT 1 AS engine_id, 'tiny' AS model, true AS chunked_prefill;
INSERT INTO engine_source BY NAME SELECT 2 AS engine_id, 'log' AS name, 'default' AS batching;
INSERT INTO step_schedule BY NAME SELECT * FROM (VALUES
    (1, 1, 0, 2, 100, 0, 0, 0, 200, 100), (1, 2, 50000000, 2, 0, 60, 1, 0, 200, 139), (1, 3, 90000000, 2, 0, 0, 2, 0, 200, 198),
    (2, 1, 0, 1, 16, 0, 0, 0, 64, 48), (2, 2, 1000000000, 1, 32, 0, 0, 0, 64, 32), (2, 3, 2000000000, 1, NULL, NULL, NULL, NULL, 64, 48),
    (2, 4, 3000000000, 1, NULL, NULL, NULL, NULL, NULL, NULL),
    (3, 1, 0, 1, 0, 0, 1, 0, 200, 199), (3, 2, 8000000, 1, 0, 0, 1, 0, 200, 199), (3, 3, 18000000, 1, 0, 0, 1, 0, 200, 199),
    (3, 4, 28000000, 2, 0, 129, 1, 0, 200, 70))
    AS s(engine_id, step, start_ns, running, prefill_tokens, chunked_prefill_tokens, decode_tokens, resumed_tokens,
        budget_tokens, budget_left_tokens);
INSERT INTO step_update BY NAME SELECT * FROM (VALUES (1, 1, 50000000), (1, 2, 90000000), (1, 3, 110000000),
    (2, 1, 500000000), (2, 2, 1500000000), (2, 3, 2100000000), (2, 4, 3100000000),
    (3, 1, 10000000), (3, 2, 20000000), (3, 3, 45000000), (3, 4, 95000000)) AS u(engine_id, step, end_ns);
INSERT INTO engine_sample BY NAME SELECT 2 AS engine_id, * FROM (VALUES
    (1, 1, 'warmup', 30.0), (2, 2, 'benchmark', 60.0), (3, 3, 'benchmark', 150.0)) AS s(sample, step, part, tokens_per_s);
