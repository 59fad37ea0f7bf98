-- Engine 1, recorded, blocks of 16 tokens. Hashes: A = 10, B = 11, C = 12, D = 13, E = 14.
-- 5.0 s  request 1, 50 tokens: A B C, nothing found.
-- 5.5 s  request 2, 48 tokens: A B D, A and B found. D holds the last token and does not count as looked up.
-- 5.9 s  request 3 is refused: no lookup.
-- 7.2 s  request 3, 34 tokens: A E, A found.
-- 7.4 s  request 2 comes back after a preemption and finds A and B: looked up again, but not counted.
-- Block 1 held something else (99) before it held A. Another pool's hit is none.
INSERT INTO engine (engine_id, block_size_tokens, hash_block_tokens, block_bytes, blocks) VALUES
    (1, 16, 16, 100, 5),
    (2, 16, 16, NULL, NULL);
INSERT INTO request (request, engine_id, session, prompt_tokens, arrival_ns) VALUES
    (1, 1, 's', 50, 4900000000),
    (2, 1, 's', 48, 5400000000),
    (3, 1, 't', 34, 5800000000),
    (11, 2, NULL, 40, 1000000000),
    (12, 2, NULL, 48, 1500000000);
INSERT INTO prefix_lookup
    (engine_id, time_ns, step, request, queried_tokens, local_hit_tokens, admitted, resumed, enabled) VALUES
    (1, 5000000000, 1, 1, 50, 0, true, false, true),
    (1, 5500000000, 2, 2, 48, 32, true, false, true),
    (1, 5900000000, 3, 3, 34, 16, false, false, true),
    (1, 7200000000, 5, 3, 34, 16, true, false, true),
    (1, 7400000000, 6, 2, 48, 32, true, true, true);
INSERT INTO block_event (engine_id, time_ns, step, block_id, op, ref_count, request, block_hash, pool) VALUES
    (1, 4000000000, 0, 1, 'cache', 1, 9, 99, 0),
    (1, 5010000000, 1, 1, 'evict', 0, 1, 99, 0),
    (1, 5020000000, 1, 1, 'cache', 1, 1, 10, 0),
    (1, 5020000000, 1, 2, 'cache', 1, 1, 11, 0),
    (1, 5020000000, 1, 3, 'cache', 1, 1, 12, 0),
    (1, 5510000000, 2, 1, 'hit', 2, 2, NULL, 0),
    (1, 5510000000, 2, 2, 'hit', 2, 2, NULL, 0),
    (1, 5510000000, 2, 3, 'hit', 2, 2, NULL, 1),
    (1, 7210000000, 5, 1, 'hit', 1, 3, NULL, 0),
    (1, 7410000000, 6, 1, 'hit', 2, 2, NULL, 0),
    (1, 7410000000, 6, 2, 'hit', 1, 2, NULL, 0);
INSERT INTO request_hash (engine_id, step, request, position, block_hash) VALUES
    (1, 1, 1, 0, 10),
    (1, 1, 1, 1, 11),
    (1, 1, 1, 2, 12),
    (1, 2, 2, 2, 13),
    (1, 5, 3, 1, 14),
    (1, 6, 2, 2, 13);
-- Engine 2, imported: two prompts of 40 and 48 tokens that share their first 32. The first one's third hash is of a
-- block that is not full; the second one's third is of a block that holds the last token.
INSERT INTO request_hash (engine_id, step, request, position, block_hash) VALUES
    (2, NULL, 11, 0, 20),
    (2, NULL, 11, 1, 21),
    (2, NULL, 11, 2, 22),
    (2, NULL, 12, 0, 20),
    (2, NULL, 12, 1, 21),
    (2, NULL, 12, 2, 23);
