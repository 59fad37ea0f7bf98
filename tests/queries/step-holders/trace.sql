-- When step 3 has been scheduled at 30, request 1 holds blocks 1 and 2, the second of them once more after it gave it
-- back; request 2 shares block 1 and waits for a load. Request 3 has given its block back, and gets another one later.
INSERT INTO engine (engine_id, blocks) VALUES (1, 8), (2, 4);
INSERT INTO request (request, engine_id, external_id, session, turn) VALUES
    (1, 1, 'cmpl-a', 'a', 0), (2, 1, 'cmpl-b', 'b', 4), (3, 1, 'cmpl-c', NULL, NULL), (4, 2, 'cmpl-d', NULL, NULL);
INSERT INTO step_schedule (engine_id, step, start_ns, scheduled_ns, used_blocks) VALUES
    (1, 2, 10, 15, 2), (1, 3, 20, 30, 3), (1, 4, 35, 40, 3), (2, 3, 5, 6, NULL);
INSERT INTO step_request (engine_id, step, request, phase, scheduled_tokens) VALUES (1, 3, 1, 'prefill', 20);
INSERT INTO block_event (engine_id, time_ns, step, block_id, op, ref_count, request, pool) VALUES
    (2, 5, 3, 1, 'allocate', 1, 4, 0),
    (1, 11, 2, 1, 'allocate', 1, 1, 0),
    (1, 12, 2, 2, 'allocate', 1, 1, 0),
    (1, 13, 2, 3, 'allocate', 1, 3, 0),
    (1, 14, 2, 3, 'free', 0, 3, 0),
    (1, 21, 3, 1, 'hit', 2, 2, 0),
    (1, 22, 3, 2, 'free', 0, 1, 0),
    (1, 22, 3, 2, 'allocate', 1, 1, 0),
    (1, 23, 3, 2, 'cache', 1, 1, 0),
    (1, 31, 3, 4, 'allocate', 1, 3, 0);
