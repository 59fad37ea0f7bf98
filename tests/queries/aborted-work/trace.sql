-- Request 1 leaves after two steps, request 2 while it waits; request 3 ends by itself.
INSERT INTO request (request, engine_id, external_id, session, turn, tenant, queued_ns, scheduled_ns, finished_ns, output_tokens,
    finish_reason)
VALUES
    (1, 1, 'x', 's', 0, 'acme', 1000000, 3000000, 10000000, 4, 'abort'),
    (2, 1, 'y', 's', 1, NULL, 2000000, NULL, 9000000, NULL, 'abort'),
    (3, 1, 'z', NULL, NULL, NULL, 2000000, 3000000, 9000000, 2, 'stop');
INSERT INTO step_request (engine_id, step, request, phase, scheduled_tokens) VALUES
    (1, 1, 1, 'prefill', 16), (1, 2, 1, 'decode', 1), (1, 2, 3, 'prefill', 9);
