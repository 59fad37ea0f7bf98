-- Two requests meet evictions (one of them twice), one is new, one begins as another, one resumes; engine 2 has no prices.
INSERT INTO prefix_miss (engine_id, time_ns, request, resumed, verdict, queried_tokens, local_hit_tokens,
    external_hit_tokens, known_tokens, recomputed_tokens, avoidable_tokens, recompute_ns, avoidable_ns)
VALUES
    (1, 1, 1, false, 'evicted', 100, 20, 10, 70, 70, 40, 7000000, 4000000),
    (1, 2, 2, false, 'evicted', 60, 20, NULL, 40, 40, 20, 4000000, 2000000),
    (1, 3, 3, false, 'never_stored', 50, 0, NULL, 0, 50, 0, 5000000, 0),
    (1, 3, 5, false, 'part_of_block', 45, 0, NULL, 8, 45, 0, 4500000, 0),
    (1, 4, 1, true, 'evicted', 110, 80, 0, 100, 30, 20, 3000000, 2000000),
    (2, 5, 4, false, 'caching_off', 40, 0, NULL, NULL, 40, NULL, NULL, NULL);
