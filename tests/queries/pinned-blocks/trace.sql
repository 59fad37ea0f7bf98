-- Request 1 runs from 0 to 10 ms with blocks 1 and 2; block 1 is then pinned by TTL until request 2, which runs from 20 to
-- 30 ms, has taken it over. Block 3 is request 2's, and a connector holds it 4 ms longer. Request 3 is refused twice
-- while block 1 is pinned: with it, one block would have been enough, seven would not. Request 4 is preempted at 32 ms, and
-- block 4, its own, is freed 4 ms later: until then it is that of a waiting request, which forces nothing.
INSERT INTO request (request, engine_id, external_id) VALUES (1, 1, 'a'), (2, 1, 'b'), (3, 1, 'c'), (4, 1, 'd');
INSERT INTO request_event (engine_id, time_ns, step, request, op) VALUES
    (1, 0, 1, 1, 'schedule'),
    (1, 0, 1, 4, 'schedule'),
    (1, 10000000, 4, 1, 'finish'),
    (1, 20000000, 7, 2, 'schedule'),
    (1, 30000000, 9, 2, 'finish'),
    (1, 32000000, 10, 4, 'preempt');
INSERT INTO block_event (engine_id, time_ns, block_id, op, ref_count, request, pool) VALUES
    (1, 0, 1, 'allocate', 1, 1, 0),
    (1, 0, 2, 'allocate', 1, 1, 0),
    (1, 0, 4, 'allocate', 1, 4, 0),
    (1, 9000000, 1, 'hit', 2, NULL, 0),
    (1, 10000000, 1, 'free', 1, 1, 0),
    (1, 10000000, 2, 'free', 0, 1, 0),
    (1, 20000000, 1, 'hit', 2, 2, 0),
    (1, 20000000, 2, 'allocate', 1, 2, 0),
    (1, 20000000, 3, 'allocate', 1, 2, 0),
    (1, 22000000, 1, 'free', 1, NULL, 0),
    (1, 25000000, 3, 'hit', 2, NULL, 0),
    (1, 30000000, 1, 'free', 0, 2, 0),
    (1, 30000000, 2, 'free', 0, 2, 0),
    (1, 30000000, 3, 'free', 1, 2, 0),
    (1, 34000000, 3, 'free', 0, NULL, 0),
    (1, 36000000, 4, 'free', 0, 4, 0);
INSERT INTO pin_start (engine_id, time_ns, step, pin, block_id, cause, request, requested_ttl_ns) VALUES
    (1, 9000000, 4, 1, 1, 'ttl', 1, 20000000),
    (1, 25000000, 8, 2, 3, 'connector', NULL, NULL);
INSERT INTO pin_end (engine_id, time_ns, step, pin, block_id, reason) VALUES
    (1, 22000000, 7, 1, 1, 'used'),
    (1, 34000000, 11, 2, 3, 'saved');
-- Step 5 takes 1.5 ms, in which three requests wait.
INSERT INTO step_schedule (engine_id, start_ns, scheduled_ns, step, waiting, admission_limit, limit_request, limit_need_blocks,
    limit_free_blocks)
VALUES
    (1, 14000000, 15000000, 5, 3, 'kv_insufficient', 3, 3, 2),
    (1, 16000000, 17000000, 6, 3, 'kv_insufficient', 3, 9, 2),
    (1, 20000000, 20500000, 7, 3, 'max_num_seqs', 3, NULL, NULL);
INSERT INTO prefix_lookup (engine_id, time_ns, step, request, admitted) VALUES
    (1, 14500000, 5, 3, false), (1, 20100000, 7, 2, true);
INSERT INTO step_update (engine_id, step, update_ns, end_ns) VALUES
    (1, 5, 15400000, 15500000), (1, 6, 17500000, 17600000), (1, 7, 21000000, 21100000);
