-- Engine 1: a's first admission misses nothing, its second (resumed) meets an eviction; b finds caching off.
INSERT INTO request (request, engine_id, external_id, session, turn) VALUES (1, 1, 'a', 's1', 0), (2, 2, 'b', 's2', 1);
INSERT INTO prefix_miss (engine_id, time_ns, step, request, resumed, verdict, queried_tokens, local_hit_tokens,
    external_hit_tokens, known_tokens, recomputed_tokens, avoidable_tokens, recompute_ns, avoidable_ns, gate_rule,
    gate_group, gate_tokens, gate_ns, why)
VALUES
    (2, 500, 1, 2, false, 'caching_off', 40, 0, NULL, NULL, 40, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        'Off.'),
    (1, 900, 9, 1, true, 'evicted', 70, 16, 0, 48, 54, 32, 5400000, 3200000,
        'window_gap', 1, 32, 3200000, 'Gone.'),
    (1, 100, 1, 1, false, 'never_stored', 60, 0, NULL, 0, 60, 0, 6000000, 0, 'absent', 0, 48,
        4800000, 'New.');
