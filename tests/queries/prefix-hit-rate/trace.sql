-- Request 1: blocked twice, then admitted with local and external hits; preempted and admitted again.
-- Request 2: never admitted, nobody knows it. Request 3: prefix caching off.
INSERT INTO request (request, engine_id, external_id, session, turn) VALUES (1, 1, 'chat-1', 's1', 2), (3, 1, 'chat-3', NULL, NULL);
INSERT INTO prefix_lookup (engine_id, time_ns, step, request, queried_tokens, local_hit_tokens, external_hit_tokens, admitted,
    repeat, resumed, enabled)
VALUES
    (1, 100, 1, 1, 64, 16, 16, false, 0, false, true),
    (1, 200, 2, 1, 64, 16, 16, false, 1, false, true),
    (1, 300, 3, 1, 64, 32, 16, true, 2, false, true),
    (1, 400, 4, 2, 50, 16, NULL, false, 0, false, true),
    (1, 500, 5, 3, 40, 0, NULL, true, 0, false, false),
    (1, 600, 9, 1, 80, 48, NULL, false, 0, true, true),
    (1, 700, 10, 1, 80, 48, NULL, true, 1, true, true);
