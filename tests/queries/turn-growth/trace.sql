-- Job a: ten turns, one after the other without gaps, of 1, 2, 3, 4, 1, 1.2, 2.4, 3.6, 4 and 7.2 s; the first four wait 0,
-- 0.8, 1.6 and 2.4 s of that, the others not at all. Job b: three turns of 3, 4 and 5 s that wait 1, 1.8 and 2.6 s, and an
-- aborted one. Transfers are under way from 19 to 27 s (two that overlap, whose copies took 4.5 and 3.2 s of it) and from 29 s on, and one
-- never ends.
INSERT INTO engine (engine_id, block_size_tokens, blocks, policy, prefix_caching) VALUES (1, 16, 100, 'fcfs', true);
INSERT INTO request BY NAME
SELECT row_number() OVER () AS request, 1 AS engine_id, session, turn, arrival * 1000000::BIGINT AS arrival_ns,
    (arrival + queue) * 1000000::BIGINT AS scheduled_ns, (arrival + latency) * 1000000::BIGINT AS finished_ns,
    reason::e_finish_reason AS finish_reason
FROM (VALUES
    ('a', 0, 0, 0, 1000, 'stop'),
    ('a', 1, 1000, 800, 2000, 'stop'),
    ('a', 2, 3000, 1600, 3000, 'stop'),
    ('a', 3, 6000, 2400, 4000, 'stop'),
    ('a', 4, 10000, 0, 1000, 'stop'),
    ('a', 5, 11000, 0, 1200, 'stop'),
    ('a', 6, 12200, 0, 2400, 'stop'),
    ('a', 7, 14600, 0, 3600, 'stop'),
    ('a', 8, 18200, 0, 4000, 'stop'),
    ('a', 9, 22200, 0, 7200, 'stop'),
    ('b', 0, 0, 1000, 3000, 'stop'),
    ('b', 1, 3000, 1800, 4000, 'stop'),
    ('b', 2, 7000, 2600, 5000, 'stop'),
    ('b', 3, 12000, 0, 1000, 'abort')
) t(session, turn, arrival, queue, latency, reason);
INSERT INTO transfer_submit (process_id, engine_id, transfer, submitted_ns, direction) VALUES
    (2, 1, 1, 19000000000, 'store'),
    (2, 1, 2, 22000000000, 'load'),
    (2, 1, 3, 29000000000, 'load'),
    (2, 1, 4, 1000000000, 'load');
INSERT INTO transfer_end (process_id, transfer, finished_ns, device_ns, reported_ns) VALUES
    (2, 1, 24000000000, 4500000000, 4900000000),
    (2, 2, 27000000000, NULL, 3200000000),
    (2, 3, 31000000000, NULL, NULL);
