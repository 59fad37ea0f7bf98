-- Two engines whose rows alternate, so that counting allocations must keep them apart.
-- Engine 1, block 1: cached at 1 ms, hit while held at 3 ms (shared: 2 ms, 1 block allocated in between), released at
-- 4 and 5 ms, hit at 9 ms (idle: 4 ms, 2 blocks), released at 10 ms, hit at 11 ms (idle: 1 ms, 0 blocks).
-- Engine 2, block 1: released at 2 ms, hit at 8 ms (idle: 6 ms, 1 block).
-- The hit in pool 1 does not count.
INSERT INTO block_event (engine_id, time_ns, step, block_id, op, ref_count, pool) VALUES
    (1, 1000000, 1, 1, 'allocate', 1, 0),
    (2, 1000000, 1, 1, 'allocate', 1, 0),
    (1, 1000000, 1, 1, 'cache', 1, 0),
    (2, 1000000, 1, 1, 'cache', 1, 0),
    (2, 2000000, 1, 1, 'free', 0, 0),
    (1, 2000000, 2, 2, 'allocate', 1, 0),
    (1, 2000000, 2, 9, 'allocate', 1, 1),
    (1, 3000000, 3, 1, 'hit', 2, 0),
    (1, 3000000, 3, 9, 'hit', 2, 1),
    (1, 4000000, 4, 1, 'free', 1, 0),
    (1, 5000000, 5, 1, 'free', 0, 0),
    (1, 6000000, 6, 3, 'allocate', 1, 0),
    (2, 6000000, 6, 2, 'allocate', 1, 0),
    (1, 6000000, 6, 4, 'allocate', 1, 0),
    (2, 8000000, 8, 1, 'hit', 1, 0),
    (1, 9000000, 9, 1, 'hit', 1, 0),
    (1, 10000000, 10, 1, 'free', 0, 0),
    (1, 11000000, 11, 1, 'hit', 1, 0);
