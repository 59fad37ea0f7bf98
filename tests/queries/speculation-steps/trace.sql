-- Engine 1 has two KV cache groups of pages and one of states. It decodes two requests in 10 ms a step; steps 6 and 7 verify
-- drafts and take 12 ms. In step 7 a grammar rules one token out. Engine 2 has no step without drafts: 4 tokens at 1 ms each
-- leave 16 of 20 ms. Engine 3 verifies drafts beside a prefill only.
INSERT INTO engine (engine_id) VALUES (1), (2), (3);
INSERT INTO kv_group BY NAME SELECT 1 AS engine_id, * FROM (VALUES (0, 'full'), (1, 'window'), (2, 'state')) AS g(kv_group, kind);
INSERT INTO cost_model (engine_id, composition, ns_per_token) VALUES (2, 'decode_only', 1000000);
INSERT INTO request (request, external_id, session, turn) VALUES (1, 'a', 's', 1), (2, 'b', NULL, NULL);
INSERT INTO step_schedule BY NAME SELECT
    engine_id, step, start_ns, start_ns AS scheduled_ns, 0 AS prefill_requests, 0 AS prefill_tokens,
    0 AS chunked_prefill_requests, chunked AS chunked_prefill_tokens, requests AS decode_requests, tokens AS decode_tokens,
    0 AS resumed_requests, 0 AS resumed_tokens
FROM (VALUES
    (1, 1, 0, 0, 2, 2), (1, 2, 20000000, 0, 2, 2), (1, 3, 40000000, 0, 2, 2), (1, 4, 60000000, 0, 2, 2),
    (1, 5, 80000000, 0, 2, 2), (1, 6, 100000000, 0, 2, 8), (1, 7, 120000000, 0, 2, 5),
    (2, 1, 0, 0, 1, 5), (3, 1, 0, 9, 1, 3)
) AS s(engine_id, step, start_ns, chunked, requests, tokens);
INSERT INTO step_update BY NAME SELECT engine_id, step, end_ns AS update_ns, end_ns FROM (VALUES
    (1, 1, 10000000), (1, 2, 30000000), (1, 3, 50000000), (1, 4, 70000000), (1, 5, 90000000), (1, 6, 112000000),
    (1, 7, 132000000), (2, 1, 20000000), (3, 1, 30000000)
) AS u(engine_id, step, end_ns);
INSERT INTO draft BY NAME SELECT * FROM (VALUES
    (1, 111000000, 6, 1, 3, 2, 0), (1, 111000001, 6, 2, 3, 0, 0), (1, 131000000, 7, 1, 3, 2, 1),
    (2, 19000000, 1, 3, 4, 1, 0), (3, 29000000, 1, 4, 2, 2, 0)
) AS d(engine_id, time_ns, step, request, drafted_tokens, accepted_tokens, invalid_tokens);
