-- Job a: turn 0 sent 1 ms late, three tokens at 11, 13 and 23 ms; turn 1 due at 30, one token. Its JCT is 40 - 0 ms.
-- Job b: its turn 1 failed, so it has no completion time. A request without a job, unknown to the engine.
INSERT INTO request (request, external_id, queued_ns, first_token_ns, finished_ns) VALUES
    (1, 'a0', 2000000, 10000000, 21000000),
    (2, 'a1', 31000000, 38500000, 39000000);
INSERT INTO client_request (request, request_id, phase, workload, session, turn, last, due_ns, send_ns, first_token_ns,
    last_token_ns, output_tokens, token_ns, error)
VALUES
    (1, 'a0', 0, 'w', 'a', 0, false, 0, 1000000, 11000000, 23000000, 3, [11000000, 13000000, 23000000], NULL),
    (2, 'a1', 0, 'w', 'a', 1, true, 30000000, 30000000, 40000000, 40000000, 1, [40000000], NULL),
    (NULL, 'b0', 0, 'w', 'b', 0, false, 2000000, 2000000, 4000000, 8000000, 5, NULL, NULL),
    (NULL, 'b1', 0, 'w', 'b', 1, true, 50000000, 50000000, NULL, NULL, 0, NULL, 'too long'),
    (NULL, 'x', NULL, NULL, NULL, NULL, NULL, NULL, 60000000, 61000000, 61500000, 2, NULL, NULL);
