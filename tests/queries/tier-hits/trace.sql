-- Block 1 (hash 12) is given up without a hit and stored again later; block 0 (hash 11) is given up after a hit.
-- Block 2 is taken and given back without content.
INSERT INTO connector (process_id, connector, role, tier, capacity_blocks) VALUES
    (1, 'A', 'scheduler', 'cpu', 3), (2, 'A', 'worker', NULL, NULL);
INSERT INTO tier_block (engine_id, connector, tier, time_ns, op, tier_block_id, request, block_hash, kv_group) VALUES
    (1, 'A', 'cpu', 1000000000, 'write', 0, NULL, NULL, NULL),
    (1, 'A', 'cpu', 1001000000, 'store', 0, NULL, 11, 0),
    (1, 'A', 'cpu', 1002000000, 'write', 1, NULL, NULL, NULL),
    (1, 'A', 'cpu', 1003000000, 'store', 1, NULL, 12, 0),
    (1, 'A', 'cpu', 1004000000, 'hit', 0, 1, 11, 0),
    (1, 'A', 'cpu', 1010000000, 'evict', 1, NULL, 12, 0),
    (1, 'A', 'cpu', 1010000000, 'write', 1, NULL, NULL, NULL),
    (1, 'A', 'cpu', 1011000000, 'store', 1, NULL, 13, 0),
    (1, 'A', 'cpu', 1012000000, 'evict', 0, NULL, 11, 0),
    (1, 'A', 'cpu', 1012000000, 'write', 0, NULL, NULL, NULL),
    (1, 'A', 'cpu', 1013000000, 'store', 0, NULL, 12, 0),
    (1, 'A', 'cpu', 1014000000, 'write', 2, NULL, NULL, NULL),
    (1, 'A', 'cpu', 1015000000, 'drop', 2, NULL, NULL, NULL);
