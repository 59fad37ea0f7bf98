-- Engine 1: three steps; steps 1 and 2 overlap (async scheduling), step 3's results were never recorded. Engine 2: one.
INSERT INTO step_schedule BY NAME SELECT * FROM (VALUES
    (1, 1000000, 1500000, 1, 2, 3, 1, 100, 1, 50, 0, 0, 0, 0, 160, 10, 30, 20, 5, 0, 'kv_insufficient'::e_limit, 7, 12, 8, 2),
    (1, 4000000, 4250000, 2, 2, 0, 0, 0, 1, 30, 1, 2, 1, 9, 160, 119, 28, 22, 6, 1, 'none'::e_limit, NULL, NULL, NULL, NULL),
    (1, 9000000, 9100000, 3, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 160, 159, 40, 10, 6, 0, 'none'::e_limit, NULL, NULL, NULL, NULL),
    (2, 2000000, 2000500, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 160, 159, 40, 10, 6, 0, NULL, NULL, NULL, NULL, NULL)
) AS t(engine_id, start_ns, scheduled_ns, step, running, waiting, prefill_requests, prefill_tokens,
    chunked_prefill_requests, chunked_prefill_tokens, decode_requests, decode_tokens, resumed_requests, resumed_tokens,
    budget_tokens, budget_left_tokens, free_blocks, used_blocks, cached_blocks, preempted_requests, admission_limit,
    limit_request, limit_need_blocks, limit_free_blocks, limit_kept_blocks);
INSERT INTO step_update VALUES
    (1, 4900000, 5000000, 1, 1, 0),
    (1, 7900000, 8000000, 2, 2, 1),
    (2, 2900000, 3000000, 1, 1, 0);
