-- Turn tags need not start at 0 or be dense: job b's 5 and 7 are its first and second turn. Lookups that were refused, and
-- one after a preemption, do not count. Job a's third turn has prefix caching off.
INSERT INTO engine (engine_id, block_size_tokens, blocks, policy, prefix_caching) VALUES (1, 16, 100, 'fcfs', true);
INSERT INTO request (request, engine_id, session, turn, arrival_ns) VALUES
    (1, 1, 'a', 0, 0), (2, 1, 'a', 1, 3000000000), (3, 1, 'a', 2, 4000000000),
    (4, 1, 'b', 5, 4000000000), (5, 1, 'b', 7, 9000000000), (6, 1, NULL, NULL, 9000000000);
INSERT INTO prefix_lookup (engine_id, time_ns, step, request, queried_tokens, local_hit_tokens, external_hit_tokens, admitted,
    repeat, resumed, enabled)
VALUES
    (1, 100, 1, 1, 100, 0, NULL, true, 0, false, true),
    (1, 200, 2, 4, 100, 16, 0, false, 0, false, true),
    (1, 300, 3, 4, 100, 50, 20, true, 1, false, true),
    (1, 400, 4, 2, 300, 150, 60, true, 0, false, true),
    (1, 500, 5, 2, 350, 300, 0, true, 0, true, true),
    (1, 600, 6, 5, 100, 0, NULL, true, 0, false, true),
    (1, 700, 7, 3, 40, 0, NULL, true, 0, false, false),
    (1, 800, 8, 6, 999, 999, NULL, true, 0, false, true);
