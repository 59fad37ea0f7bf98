-- Block 1: allocated at 1 ms, cached, released at 3 ms, hit at 4, released at 5, evicted at 9 ms (8 ms, 4 blocks allocated
-- meanwhile, idle for 4 ms, 1 block) and allocated again at once; still there at the last event, at 12 ms (3 ms, 1 block).
-- Block 2: allocated at 2 ms, never cached, released, allocated again at 6 ms (4 ms, 2 blocks), then there until the end
-- (6 ms, 2 blocks). Blocks 3 to 5 were allocated at 2, 4 and 10 ms and are there until the end.
INSERT INTO block_event (engine_id, time_ns, step, block_id, op, ref_count, pool) VALUES
    (1, 1000000, 1, 1, 'allocate', 1, 0),
    (1, 1000000, 1, 1, 'cache', 1, 0),
    (1, 2000000, 2, 2, 'allocate', 1, 0),
    (1, 2000000, 2, 3, 'allocate', 1, 0),
    (1, 3000000, 3, 1, 'free', 0, 0),
    (1, 3500000, 3, 2, 'free', 0, 0),
    (1, 4000000, 4, 1, 'hit', 1, 0),
    (1, 4000000, 4, 4, 'allocate', 1, 0),
    (1, 5000000, 5, 1, 'free', 0, 0),
    (1, 6000000, 6, 2, 'allocate', 1, 0),
    (1, 9000000, 9, 1, 'evict', 0, 0),
    (1, 9000000, 9, 1, 'allocate', 1, 0),
    (1, 10000000, 10, 5, 'allocate', 1, 0),
    (1, 12000000, 12, 3, 'free', 0, 0),
    (1, 13000000, 12, 9, 'allocate', 1, 1);
