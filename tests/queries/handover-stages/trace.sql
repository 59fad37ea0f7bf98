-- Request x: computed in engine 1, read by both workers of engine 2, which is on another host. It arrives at 1 ms, is queued
-- at 1.5, has blocks at 2.5, is taken up at 3.0, prepared from 3.1, posted at 4.4, there at 8.0 by NIXL's telemetry (the
-- later read), told at 9.0 and scheduled at 11.0. The prefill engine's later worker finds the notice 1.2 ms after the
-- end. Request y: its other half was not ingested, NIXL told nothing, and when it got its blocks was not recorded.
-- Request z failed before it was posted.
INSERT INTO process (process_id, host_clock) VALUES (1, 1), (2, 2), (3, 2), (4, 1), (5, 2);
INSERT INTO host_clock (host_clock, uncertainty_ns) VALUES (1, 0), (2, 500000);
INSERT INTO engine (engine_id, connector) VALUES (1, 'NixlConnector'), (2, 'NixlConnector');
INSERT INTO request (request, engine_id, internal_id, external_id, max_tokens, external_cached_tokens, arrival_ns,
    queued_ns, scheduled_ns, finished_ns)
VALUES
    (1, 1, 'x-1', 'x', 1, 0, 100000, 200000, 300000, 900000),
    (2, 2, 'x-2', 'x', 8, 64, 1000000, 1500000, 11000000, 60000000),
    (3, 2, 'y-3', 'y', 8, 64, NULL, 20000000, 29000000, 70000000),
    (4, 2, 'z-4', 'z', 8, 0, 30000000, 30100000, NULL, 31000000);
INSERT INTO request_remote (engine_id, time_ns, request, part, remote_request) VALUES
    (2, 1500000, 2, 'decode', 'x-1'), (2, 20000000, 3, 'decode', 'y-1'), (2, 30100000, 4, 'decode', 'z-1');
INSERT INTO pin_start (engine_id, time_ns, step, pin, block_id, cause, request) VALUES
    (2, 2500000, 8, 1, 3, 'async_load', 2),
    (2, 2510000, 8, 1, 4, 'async_load', 2),
    (2, 30300000, 20, 3, 5, 'async_load', 4);
INSERT INTO handover_read (process_id, begin_ns, engine_id, step, request, transfer, remote_engine, remote_request,
    prepare_ns, prepared_ns, posted_ns, wire_start_ns, post_ns, wire_ns, running_ns, seen_ns, descriptors,
    posted_descriptors, bytes, success)
VALUES
    (3, 3000000, 2, 8, 2, 1, 'p', 'x-1', 3100000, 3200000, 4000000, 3250000, 700000, 4250000, 6000000, 7600000, 8, 2,
        4096, true),
    (5, 3050000, 2, 8, 2, 1, 'p', 'x-1', 3300000, 3400000, 4400000, 3450000, 900000, 4550000, 5500000, 8200000, 8, 8,
        4096, true),
    (3, 22000000, 2, 15, 3, 2, 'q', 'y-1', 22100000, 22200000, 22500000, NULL, NULL, NULL, NULL, 24000000, 4, NULL,
        NULL, true),
    (3, 30400000, 2, 20, 4, 3, 'q', 'z-1', 30500000, 30600000, NULL, NULL, NULL, NULL, NULL, NULL, 4, NULL, NULL,
        false);
INSERT INTO connector_news (engine_id, time_ns, step, request, op) VALUES
    (2, 9000000, 9, 2, 'loaded'), (2, 25000000, 16, 3, 'loaded'), (2, 50000000, 30, 2, 'ended');
INSERT INTO handover_notice (process_id, time_ns, engine_id, step, request) VALUES
    (1, 9100000, 1, 4, 1), (4, 9200000, 1, 4, 1);
