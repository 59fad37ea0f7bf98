-- Request 1's load fails before a transfer, and the request with it. Request 2's first transfer succeeds on both workers,
-- its second on one: it is computed instead. Request 3's load in its step fails; it has no pin. Request 4's load is
-- given up by its client, request 5's arrives, and a store fails.
INSERT INTO request (request, engine_id, external_id, finished_ns, finish_reason) VALUES
    (1, 1, 'a', 9000000, 'error'), (2, 1, 'b', 30000000, 'length'), (3, 2, 'c', NULL, NULL), (4, 1, 'd', 9000000, 'abort'),
    (5, 1, 'e', 9000000, 'stop');
INSERT INTO pin_start (engine_id, time_ns, step, pin, block_id, cause, request) VALUES
    (1, 1000000, 1, 1, 10, 'async_load', 1), (1, 1000000, 1, 1, 11, 'async_load', 1),
    (1, 2000000, 1, 2, 12, 'async_load', 2), (1, 2000000, 1, 2, 13, 'async_load', 2),
    (1, 2000000, 1, 3, 14, 'async_load', 4), (1, 2000000, 1, 4, 15, 'async_load', 5),
    (1, 2000000, 1, 5, 16, 'delayed_free', 1);
INSERT INTO pin_end (engine_id, time_ns, step, pin, block_id, reason) VALUES
    (1, 6000000, 4, 1, 10, 'failed'), (1, 6000000, 4, 1, 11, 'failed'),
    (1, 9000000, 4, 2, 12, 'failed'), (1, 9000000, 4, 2, 13, 'failed'),
    (1, 5000000, 4, 3, 14, 'aborted'), (1, 5000000, 4, 4, 15, 'loaded'), (1, 5000000, 4, 5, 16, 'failed');
INSERT INTO transfer_submit (process_id, engine_id, step, transfer, direction, submitted_ns) VALUES
    (2, 1, 1, 1, 'load', 3000000), (3, 1, 1, 1, 'load', 3000000), (2, 1, 1, 2, 'load', 3000000),
    (3, 1, 1, 2, 'load', 3000000), (2, 1, 1, 3, 'load', 3000000), (2, 1, 1, 5, 'store', 3000000),
    (4, 2, 1, 4, 'load', 3000000);
INSERT INTO transfer_end (process_id, transfer, finished_ns, success) VALUES
    (2, 1, 4000000, true), (3, 1, 4000000, true), (2, 2, 5000000, true), (3, 2, 5000000, false),
    (2, 3, 4000000, true), (2, 5, 4000000, false), (4, 4, 7000000, false);
INSERT INTO transfer_block (engine_id, step, transfer, direction, request, gpu_block_id) VALUES
    (1, 1, 1, 'load', 2, 12), (1, 1, 2, 'load', 2, 13), (1, 1, 3, 'load', 5, 15), (1, 1, 5, 'store', 5, 15),
    (2, 1, 4, 'load', 3, 1), (2, 1, 4, 'load', 3, 2);
