-- Times in ms. Job j: request 1 takes blocks 1 and 2 and caches content 11 in block 1, which a tier stores. It ends, and
-- lets go; block 1 is evicted for request 9 of job k, which caches content 99 there. Turn 2 (request 2) gets content 11
-- loaded into block 3 before it runs, is preempted, finds block 3 again; the tier evicts content 11. Its blocks are freed
-- after its end in nobody's name. Then the cache is reset.
INSERT INTO request BY NAME
SELECT request, 1 AS engine_id, session, turn, arrival * 1000000::BIGINT AS arrival_ns, finished * 1000000::BIGINT AS finished_ns
FROM (VALUES (1, 'j', 0, 100, 500), (2, 'j', 1, 700, 950), (9, 'k', 0, 550, 660)) t(request, session, turn, arrival, finished);
INSERT INTO request_event BY NAME
SELECT 1 AS engine_id, ms * 1000000::BIGINT AS time_ns, request, op::e_request_op AS op
FROM (VALUES (250, 1, 'schedule'), (260, 1, 'first_token'), (500, 1, 'finish'), (620, 9, 'schedule'), (660, 9, 'finish'),
    (860, 2, 'schedule'), (870, 2, 'preempt'), (890, 2, 'resume'), (950, 2, 'finish')) t(ms, request, op);
INSERT INTO block_event BY NAME
SELECT 1 AS engine_id, ms * 1000000::BIGINT AS time_ns, block_id, op::e_block_op AS op, ref_count, request, block_hash,
    CASE WHEN block_hash IS NOT NULL THEN 0 END AS kv_group, 0 AS pool
FROM (VALUES
    (200, 1, 'allocate', 1, 1, NULL),
    (200, 2, 'allocate', 1, 1, NULL),
    (300, 1, 'cache', 1, 1, 11),
    (510, 2, 'free', 0, 1, NULL),
    (510, 1, 'free', 0, 1, NULL),
    (600, 1, 'evict', 0, 9, 11),
    (600, 1, 'allocate', 1, 9, NULL),
    (650, 1, 'cache', 1, 9, 99),
    (665, 1, 'free', 0, 9, NULL),
    (800, 3, 'allocate', 1, 2, NULL),
    (850, 3, 'cache', 1, NULL, 11),
    (880, 3, 'free', 0, 2, NULL),
    (885, 3, 'hit', 1, 2, NULL),
    (960, 3, 'free', 0, NULL, NULL),
    (1000, -1, 'reset', 0, NULL, NULL)
) t(ms, block_id, op, ref_count, request, block_hash);
INSERT INTO tier_block (engine_id, time_ns, connector, tier, op, tier_block_id, block_hash, kv_group) VALUES
    (1, 390000000, 'C', 'cpu', 'write', 7, 11, 0),
    (1, 400000000, 'C', 'cpu', 'store', 7, 11, 0),
    (1, 410000000, 'C', 'cpu', 'store', 8, 55, 0),
    (1, 900000000, 'C', 'cpu', 'evict', 7, 11, 0);
