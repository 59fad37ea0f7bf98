-- Engine 1: 40 lookups of blocks of 16 tokens. Engine 2 looked nothing up, and the bytes of its blocks are unknown.
INSERT INTO engine (engine_id, block_size_tokens, block_bytes, blocks) VALUES (1, 16, 100, 21), (2, 16, NULL, 8);
INSERT INTO reuse_size (engine_id, times, size_blocks, lookups, hits, recorded_hits) VALUES
    (1, 0.5, 10, 40, 4, NULL),
    (1, 1, 21, 40, 10, 9),
    (1, 2, 42, 40, 20, NULL),
    (1, 4, 84, 40, 20, NULL),
    (2, 1, 8, 0, 0, 0);
