-- A pool of 10 blocks and one request that takes blocks 1 to 3.
-- Step 1: 1 and 2 become cached, 3 does not. Afterwards all three are released: 1 and 2 stay findable, 3 is empty.
-- Step 2: nothing in use. Step 3: block 1 is hit, block 2 is evicted for a new allocation, which stays uncached.
-- Step 4: block 1 is evicted while in use, by order of the engine, and so is in use without being cached, as is block 2.
-- Blocks of another pool do not count.
INSERT INTO engine (engine_id, blocks) VALUES (1, 10);
INSERT INTO step_schedule (engine_id, start_ns, scheduled_ns, step, used_blocks, free_blocks, cached_blocks) VALUES
    (1, 900000, 1000000, 1, 3, 7, 2),
    (1, 1900000, 2000000, 2, 0, 10, 2),
    (1, 2900000, 3000000, 3, 2, 8, 1),
    (1, 3900000, 4000000, 4, 2, 8, 0);
INSERT INTO block_event (engine_id, time_ns, step, block_id, op, ref_count, pool) VALUES
    (1, 950000, 1, 1, 'allocate', 1, 0),
    (1, 950000, 1, 2, 'allocate', 1, 0),
    (1, 950000, 1, 3, 'allocate', 1, 0),
    (1, 950000, 1, 1, 'allocate', 1, 1),
    (1, 960000, 1, 1, 'cache', 1, 0),
    (1, 960000, 1, 2, 'cache', 1, 0),
    (1, 1500000, 1, 3, 'free', 0, 0),
    (1, 1500000, 1, 2, 'free', 0, 0),
    (1, 1500000, 1, 1, 'free', 0, 0),
    (1, 2950000, 3, 1, 'hit', 1, 0),
    (1, 2960000, 3, 2, 'evict', 0, 0),
    (1, 2960000, 3, 2, 'allocate', 1, 0),
    (1, 3950000, 4, 1, 'evict', 1, 0);
