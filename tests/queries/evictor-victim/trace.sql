-- Block 5 is taken from request 1 by request 2, and from that by request 3, which had looked its prefix up in vain: request 2
-- had evicted it.
INSERT INTO request (request, engine_id, session, tenant, lora) VALUES
    (1, 1, 'a-1', 'acme', NULL), (2, 1, 'b-1', 'globex', 'sql'), (3, 1, 'a-2', 'acme', NULL);
INSERT INTO block_event (engine_id, time_ns, step, block_id, op, ref_count, request, pool) VALUES
    (1, 1, 1, 5, 'allocate', 1, 1, 0),
    (1, 2, 1, 5, 'cache', 1, 1, 0),
    (1, 3, 2, 5, 'free', 0, 1, 0),
    (1, 4, 3, 5, 'evict', 0, 2, 0),
    (1, 4, 3, 5, 'allocate', 1, 2, 0),
    (1, 5, 3, 5, 'cache', 1, 2, 0),
    (1, 6, 4, 5, 'free', 0, 2, 0),
    (1, 7, 5, 5, 'evict', 0, 3, 0),
    (1, 7, 5, 5, 'allocate', 1, 3, 0);
INSERT INTO prefix_miss (engine_id, time_ns, request, verdict, other_request, avoidable_tokens, avoidable_ns) VALUES
    (1, 2, 2, 'never_stored', NULL, 0, 0),
    (1, 7, 3, 'evicted', 2, 16, 5000000);
