-- Request x: prefill in engine 1 (2 ms to 14 ms), decode in engine 2 on another host; its first step loads for 2.1 ms, from
-- the first worker's start to the last one's end. Request y/z: joined by the remote request's id, loaded asynchronously
-- from 41 to 47 ms. Engine 3 has no connector, and w found nothing outside: neither is a hand-over.
INSERT INTO process (process_id, host_clock) VALUES (1, 1), (2, 2), (3, 1);
INSERT INTO host_clock (host_clock, uncertainty_ns) VALUES (1, 0), (2, 500000);
INSERT INTO engine (engine_id, connector) VALUES (1, 'ExampleConnector'), (2, 'ExampleConnector'), (3, NULL);
INSERT INTO request (request, engine_id, internal_id, external_id, max_tokens, external_cached_tokens, arrival_ns,
    queued_ns, scheduled_ns, first_token_ns, finished_ns)
VALUES
    (1, 1, 'x-1', 'x', 1, 0, 1000000, 2000000, 4000000, 14000000, 14000000),
    (2, 2, 'x-2', 'x', 8, 32, 17000000, 18000000, 20000000, 25000000, 60000000),
    (3, 1, 'y-1', 'y', 1, 0, 30000000, 30000000, 31000000, 35000000, 36000000),
    (4, 2, 'z-9', 'z', 4, 16, 40000000, 40000000, 50000000, 53000000, 70000000),
    (5, 3, 'x-5', 'x', 1, 0, 1000000, 2000000, 4000000, 14000000, 15000000),
    (6, 1, 'w-6', 'w', 1, 0, 80000000, 80000000, 81000000, 82000000, 82000000),
    (7, 2, 'w-7', 'w', 1, 0, 80000000, 80000000, 81000000, 82000000, 82000000);
INSERT INTO request_event (engine_id, time_ns, step, request, op) VALUES
    (2, 20000000, 5, 2, 'schedule'),
    (2, 50000000, 9, 4, 'schedule'),
    (1, 4000000, 5, 1, 'schedule');
INSERT INTO connector_call (process_id, engine_id, step, part, call, start_ns, end_ns) VALUES
    (2, 2, 5, 0, 'load', 20500000, 22500000),
    (4, 2, 5, 0, 'load', 20600000, 22600000),
    (2, 2, 5, 0, 'save', 24000000, 24500000),
    (1, 1, 5, 0, 'load', 5000000, 5500000);
INSERT INTO request_remote (engine_id, time_ns, request, part, remote_request) VALUES (2, 40000000, 4, 'decode', 'y-1');
INSERT INTO pin_start (engine_id, time_ns, step, pin, block_id, cause, request) VALUES
    (2, 41000000, 8, 1, 3, 'async_load', 4),
    (2, 41000000, 8, 1, 4, 'async_load', 4);
INSERT INTO pin_end (engine_id, time_ns, step, pin, block_id, reason) VALUES
    (2, 47000000, 9, 1, 3, 'loaded'),
    (2, 47000000, 9, 1, 4, 'loaded');
