-- Request 1 holds block 1 for 2 s. Request 2 finds it and holds it for 3 s; its block 2 is not given back before it ends,
-- 4 s later. Request 3 never reached an engine.
INSERT INTO request (request, engine_id, session, tenant, lora, queued_ns, prompt_tokens, local_cached_tokens, finished_ns)
VALUES
    (1, 1, 'a-1', 'acme', NULL, 1, 32, 0, 3000000000),
    (2, 1, 'a-2', 'acme', 'sql', 1, 40, 16, 6000000000),
    (3, NULL, NULL, 'acme', NULL, NULL, NULL, NULL, NULL);
INSERT INTO block_event (engine_id, time_ns, step, block_id, op, ref_count, request, pool) VALUES
    (1, 1000000000, 1, 1, 'allocate', 1, 1, 0),
    (1, 1500000000, 1, 1, 'cache', 1, 1, 0),
    (1, 2000000000, 2, 1, 'hit', 2, 2, 0),
    (1, 2000000000, 2, 2, 'allocate', 1, 2, 0),
    (1, 3000000000, 3, 1, 'free', 1, 1, 0),
    (1, 5000000000, 5, 1, 'free', 0, 2, 0);
