-- Request 1 gives up blocks 1 and 2 in step 5; request 2 takes block 1. In step 9 request 2 is preempted and gets the block
-- back itself.
INSERT INTO request (request, engine_id, session, tenant) VALUES (1, 1, 'a', 'acme'), (2, 1, 'b', 'globex');
INSERT INTO request_event (engine_id, time_ns, step, request, op, computed_tokens, blocks) VALUES
    (1, 5000000, 5, 1, 'preempt', 64, 2),
    (1, 7500000, 7, 1, 'resume', 48, 2),
    (1, 9000000, 9, 2, 'preempt', 20, 1);
INSERT INTO block_event (engine_id, time_ns, step, block_id, op, ref_count, request, pool) VALUES
    (1, 5000000, 5, 2, 'free', 0, 1, 0),
    (1, 5000000, 5, 1, 'free', 0, 1, 0),
    (1, 5000001, 5, 1, 'allocate', 1, 2, 0),
    (1, 9000000, 9, 1, 'free', 0, 2, 0),
    (1, 9000001, 9, 1, 'allocate', 1, 2, 0);
