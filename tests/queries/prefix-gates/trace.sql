-- Engine 1: a and b lose tokens to a sliding window's group, a to alignment at two places; b is admitted again. Engine 2
-- was recorded before rules were.
INSERT INTO prefix_loss (engine_id, time_ns, step, request, resumed, place, rule, kv_group, kv_groups, kind,
    start_tokens, lost_tokens, known_tokens, computed_tokens, compute_ns)
VALUES
    (1, 100, 1, 1, false, 0, 'partial_block', NULL, NULL, NULL, 96, 4, 0, 4, 400000),
    (1, 100, 1, 1, false, 1, 'alignment', 0, 1, 'full', 64, 32, 32, 32, 3200000),
    (1, 100, 1, 1, false, 2, 'eagle_drop', 0, 1, 'full', 48, 16, 16, 16, 1600000),
    (1, 100, 1, 1, false, 3, 'alignment', 0, 1, 'full', 32, 16, 16, 16, 1600000),
    (1, 100, 1, 1, false, 4, 'window_gap', 1, 2, 'window', 0, 32, 32, 8, 800000),
    (1, 200, 2, 2, false, 0, 'window_gap', 1, 2, 'window', 0, 64, 64, 64, NULL),
    (1, 300, 3, 2, true, 0, 'last_token', NULL, NULL, NULL, 48, 16, 16, 16, 1600000),
    (2, 100, 1, 3, false, 0, 'unknown', NULL, NULL, NULL, 0, 50, 0, 50, NULL);
