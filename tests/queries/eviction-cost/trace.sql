-- Blocks of 16 tokens and 32,000 bytes; loading reached 10^8 bytes a second in engine 1. Request 2 lost two blocks to
-- request 1's allocation; request 3 lost one to a reset in engine 2, which has neither prices nor transfers. A miss for
-- another reason is no eviction.
INSERT INTO engine (engine_id, block_size_tokens, block_bytes) VALUES (1, 16, 32000), (2, 16, 32000);
INSERT INTO transfer_rate VALUES (1, 'load', 'host', 3, 1000, 10000, 1e8), (1, 'store', 'host', 3, 1, 1, 1);
INSERT INTO request (request, engine_id, external_id) VALUES (1, 1, 'a'), (2, 1, 'b'), (3, 2, 'c');
INSERT INTO prefix_miss (engine_id, time_ns, request, resumed, verdict, avoidable_tokens, avoidable_ns, released_ns,
    lost_ns, other_request)
VALUES
    (1, 9000000, 2, false, 'evicted', 32, 4000000, 2000000, 5000000, 1),
    (1, 9500000, 1, false, 'never_stored', 0, 0, NULL, NULL, NULL),
    (2, 9000000, 3, true, 'reset', 16, NULL, NULL, 8000000, NULL);
