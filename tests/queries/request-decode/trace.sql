-- Request 1 has its first token in step 1 at 10 ms. Step 2 (10 ms) generates only, step 3 (30 ms) computes 100 tokens of
-- request 2's prompt beside it, and step 4 (12 ms) generates for both. It is preempted at 63 ms, admitted again at 80 ms
-- and computed again in step 6 (10 ms) beside request 2. Step 7 (14 ms) generates its last token; step 8 is under way when it has
-- ended. Request 3 has one token only, and request 4 was preempted and never admitted again.
-- Engine 2 is asynchronous: a decode takes 10 ms, and the launch of step 4, which computes a prompt, delays the results of step 3
-- by 15 ms. Request 5 is in all steps from 2 to 5, request 6 has its last token of step 3, request 7 its first.
INSERT INTO request (request, engine_id, external_id, session, turn, output_tokens, first_token_ns, finished_ns) VALUES
    (1, 1, 'a', 's', 0, 5, 10000000, 105000000),
    (2, 1, NULL, NULL, NULL, 2, 51000000, 63000000),
    (3, 1, NULL, NULL, NULL, 1, 10000000, 10000000),
    (4, 1, NULL, NULL, NULL, 2, 10000000, 110000000),
    (5, 2, NULL, NULL, NULL, 5, 10000000, 105000000),
    (6, 2, NULL, NULL, NULL, 3, 10000000, 45000000),
    (7, 2, NULL, NULL, NULL, 3, 45000000, 105000000);
INSERT INTO step_schedule (engine_id, step, start_ns, prefill_requests, chunked_prefill_requests, decode_requests,
    resumed_requests, prefill_tokens, chunked_prefill_tokens, decode_tokens, resumed_tokens)
VALUES
    (1, 1, 0, 3, 0, 0, 0, 30, 0, 0, 0),
    (1, 2, 10000000, 0, 0, 2, 0, 0, 0, 2, 0),
    (1, 3, 21000000, 1, 0, 1, 0, 100, 0, 1, 0),
    (1, 4, 51000000, 0, 0, 2, 0, 0, 0, 2, 0),
    (1, 6, 81000000, 0, 0, 0, 1, 0, 0, 0, 40),
    (1, 7, 91000000, 0, 0, 1, 0, 0, 0, 1, 0),
    (1, 8, 92000000, 0, 0, 1, 0, 0, 0, 1, 0),
    (2, 1, 0, 0, 0, 2, 0, 0, 0, 2, 0),
    (2, 2, 8000000, 0, 0, 2, 0, 0, 0, 2, 0),
    (2, 3, 18000000, 0, 0, 3, 0, 0, 0, 3, 0),
    (2, 4, 28000000, 1, 0, 2, 0, 100, 0, 2, 0),
    (2, 5, 93000000, 0, 0, 2, 0, 0, 0, 2, 0);
INSERT INTO step_update (engine_id, step, update_ns, end_ns) VALUES
    (1, 1, 9000000, 10000000), (1, 2, 19000000, 20000000), (1, 3, 50000000, 51000000), (1, 4, 62000000, 63000000),
    (1, 6, 90000000, 91000000), (1, 7, 104000000, 105000000), (1, 8, 108000000, 109000000),
    (2, 1, 9000000, 10000000), (2, 2, 19000000, 20000000), (2, 3, 44000000, 45000000), (2, 4, 94000000, 95000000),
    (2, 5, 104000000, 105000000);
INSERT INTO step_request (engine_id, step, request, phase, scheduled_tokens) VALUES
    (1, 1, 1, 'prefill', 10), (1, 1, 3, 'prefill', 10), (1, 1, 4, 'prefill', 10),
    (1, 2, 1, 'decode', 1), (1, 2, 4, 'decode', 1), (1, 3, 1, 'decode', 1), (1, 3, 2, 'prefill', 100),
    (1, 4, 1, 'decode', 1), (1, 4, 2, 'decode', 1), (1, 6, 1, 'resumed', 40), (1, 7, 1, 'decode', 1), (1, 8, 1, 'decode', 1),
    (2, 2, 5, 'decode', 1), (2, 3, 5, 'decode', 1), (2, 4, 5, 'decode', 1), (2, 5, 5, 'decode', 1),
    (2, 2, 6, 'decode', 1), (2, 3, 6, 'decode', 1), (2, 4, 7, 'decode', 1), (2, 5, 7, 'decode', 1);
INSERT INTO request_event (engine_id, time_ns, step, request, op) VALUES
    (1, 30000000, 3, 4, 'preempt'), (1, 63000000, 5, 1, 'preempt'), (1, 80000000, 6, 1, 'resume'),
    (1, 105000000, 7, 1, 'finish'), (1, 110000000, 8, 4, 'finish');
