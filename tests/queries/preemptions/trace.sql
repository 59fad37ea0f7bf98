-- Request 1 is preempted twice (steps 5 and 9) and resumes twice; its second recomputation takes two steps.
-- Request 2 is aborted while it waits. Request 3 still waits when the recording ends.
INSERT INTO request (request, engine_id, external_id) VALUES (1, 1, 'a'), (2, 1, 'b');
INSERT INTO request_event (engine_id, time_ns, step, request, op, computed_tokens, output_tokens, local_cached_tokens,
    external_cached_tokens, blocks)
VALUES
    (1, 1000000, 1, 1, 'schedule', 0, 0, 0, NULL, 4),
    (1, 2000000, 1, 1, 'first_token', 60, 1, NULL, NULL, 4),
    (1, 5000000, 5, 1, 'preempt', 64, 5, NULL, NULL, 4),
    (1, 5000000, 5, 2, 'preempt', 20, 0, NULL, NULL, 2),
    (1, 7500000, 7, 1, 'resume', 48, 5, 48, NULL, 3),
    (1, 8000000, 8, 2, 'finish', 0, 0, NULL, NULL, 0),
    (1, 9000000, 9, 1, 'preempt', 66, 7, NULL, NULL, 5),
    (1, 9500000, 9, 3, 'preempt', 10, 1, NULL, NULL, 1),
    (1, 12000000, 12, 1, 'resume', 16, 7, 16, 8, 2),
    (1, 20000000, 20, 1, 'finish', 80, 20, NULL, NULL, 5);
INSERT INTO step_request (engine_id, step, request, phase, scheduled_tokens) VALUES
    (1, 1, 1, 'prefill', 60),
    (1, 4, 1, 'decode', 1),
    (1, 7, 1, 'resumed', 17),
    (1, 8, 1, 'decode', 1),
    (1, 12, 1, 'resumed', 32),
    (1, 13, 1, 'resumed', 11),
    (1, 14, 1, 'decode', 1);
