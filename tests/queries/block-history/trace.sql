-- Two blocks of request 1, and one of a CPU pool, which is left out.
INSERT INTO request (request, engine_id, session) VALUES (1, 1, 'a');
INSERT INTO block_event (engine_id, time_ns, step, block_id, op, ref_count, request, block_hash, pool) VALUES
    (1, 5, 2, 7, 'allocate', 1, 1, NULL, 0),
    (1, 6, 2, 7, 'cache', 1, 1, 99, 0),
    (1, 7, 2, 8, 'allocate', 1, 1, NULL, 0),
    (1, 8, 2, 7, 'allocate', 1, 1, NULL, 1);
