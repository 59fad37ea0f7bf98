-- Steps are scheduled at 10, 20, 30, 40, 50, 62 and 70 ms. Request 2 comes at 12 ms, while step 1 runs; it is behind
-- request 1 in steps 2 and 3, waits without a head in step 4, heads the queue in step 5 and is admitted at 60 ms. Request 3
-- ends at 45 ms without being admitted. Request 4 waits for a grammar until the recording ends, and request 5 was
-- admitted before a step looked at it. Request 6 is another engine's.
INSERT INTO request (request, engine_id, external_id, session, turn, queued_ns, scheduled_ns, finished_ns) VALUES
    (1, 1, NULL, NULL, NULL, 1000000, 50000000, NULL),
    (2, 1, 'b', 's', 4, 12000000, 60000000, NULL),
    (3, 1, NULL, NULL, NULL, 31000000, NULL, 45000000),
    (4, 1, NULL, NULL, NULL, 40000000, NULL, NULL),
    (5, 1, NULL, NULL, NULL, 5000000, 8000000, 90000000),
    (6, 2, NULL, NULL, NULL, 12000000, 15000000, NULL);
INSERT INTO step_schedule (engine_id, step, start_ns, scheduled_ns, admission_limit, limit_request) VALUES
    (1, 1, 9000000, 10000000, 'token_budget', 1),
    (1, 2, 19000000, 20000000, 'kv_insufficient', 1),
    (1, 3, 29000000, 30000000, 'kv_insufficient', 1),
    (1, 4, 39000000, 40000000, 'none', NULL),
    (1, 5, 49000000, 50000000, 'max_num_seqs', 2),
    (1, 6, 61000000, 62000000, 'none', NULL),
    (1, 7, 69000000, 70000000, 'none', NULL),
    (2, 1, 11000000, 13000000, 'max_num_seqs', 6);
