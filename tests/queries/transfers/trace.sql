-- Two stores timed on the GPU (1 and 4 GB/s), a load as the connector reports it (2 GB/s, 1 ms of 5 after submission),
-- a load without an end, and a store to disk that failed, timed on the host (0.5 GB/s).
INSERT INTO transfer_submit (process_id, engine_id, step, transfer, connector, direction, from_tier, to_tier, blocks,
    bytes, submitted_ns)
VALUES
    (2, 1, 1, 0, 'A', 'store', 'gpu', 'cpu', 2, 1000000, 0),
    (2, 1, 2, 1, 'A', 'store', 'gpu', 'cpu', 8, 4000000, 10000000),
    (2, 1, 3, 2, 'A', 'load', 'cpu', 'gpu', 4, NULL, 20000000),
    (2, 1, 4, 3, 'A', 'load', 'cpu', 'gpu', 4, 2000000, 28000000),
    (2, 1, 5, 4, 'B', 'store', 'gpu', 'disk', 1, 500000, 29000000);
INSERT INTO transfer_end (process_id, transfer, started_ns, finished_ns, bytes, device_ns, reported_ns, success)
VALUES
    (2, 0, 100000, 3000000, 1000000, 1000000, NULL, true),
    (2, 1, 10300000, 14000000, 4000000, 1000000, NULL, true),
    (2, 2, NULL, 25000000, 2000000, NULL, 1000000, true),
    (2, 4, 30000000, 31000000, 500000, NULL, NULL, false);
