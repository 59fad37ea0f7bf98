-- Request 1 is preempted with 100 tokens computed, finds 64 of them, computes 16 again and is preempted once more with 80;
-- then it finds 64 and computes 50, of which 36 (up to the hundredth) for the second time. Together 52 of 200 tokens.
-- It is looked up three times after preemptions, once in vain. Request 2 is refused twice; at its admission 16 tokens of
-- its prompt had been evicted. Request 3 computes 16 tokens of its hit again; request 4 only its prompt's last one. What request 1 lost by eviction before it resumed counts with its preemptions.
INSERT INTO engine (engine_id, block_size_tokens, blocks, policy, prefix_caching) VALUES (1, 16, 100, 'fcfs', true);
INSERT INTO request_event (engine_id, time_ns, step, request, op, computed_tokens) VALUES
    (1, 10, 1, 1, 'schedule', 0),
    (1, 50, 5, 1, 'preempt', 100),
    (1, 80, 8, 1, 'resume', 64),
    (1, 90, 9, 1, 'preempt', 80),
    (1, 110, 11, 1, 'resume', 64);
INSERT INTO request_event (engine_id, time_ns, step, request, op, computed_tokens, local_cached_tokens) VALUES
    (1, 120, 12, 3, 'schedule', 48, 64), (1, 121, 12, 4, 'schedule', 63, 64);
INSERT INTO step_request (engine_id, step, request, phase, scheduled_tokens, computed_tokens) VALUES
    (1, 1, 1, 'prefill', 90, 0),
    (1, 2, 1, 'decode', 10, 90),
    (1, 8, 1, 'resumed', 16, 64),
    (1, 11, 1, 'resumed', 50, 64),
    (1, 12, 2, 'prefill', 34, 0);
INSERT INTO prefix_lookup (engine_id, time_ns, step, request, queried_tokens, local_hit_tokens, admitted, repeat, resumed,
    enabled)
VALUES
    (1, 10, 1, 1, 90, 0, true, 0, false, true),
    (1, 70, 7, 1, 100, 64, false, 0, true, true),
    (1, 80, 8, 1, 100, 64, true, 1, true, true),
    (1, 100, 10, 2, 34, 0, false, 0, false, true),
    (1, 110, 11, 1, 100, 64, true, 0, true, true),
    (1, 111, 11, 2, 34, 0, false, 1, false, true),
    (1, 120, 12, 2, 34, 0, true, 2, false, true);
INSERT INTO prefix_miss (engine_id, time_ns, step, request, resumed, verdict, avoidable_tokens) VALUES
    (1, 10, 1, 1, false, 'never_stored', 0),
    (1, 80, 8, 1, true, 'evicted', 30),
    (1, 120, 12, 2, false, 'evicted', 16);
