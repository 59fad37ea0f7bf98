-- Job a's first turn: 3 tokens in 4 steps, for its prompt came in two chunks, with one step sat out. Job b's first: 2
-- tokens in 2 steps. Job a's second: 4 tokens in 5 steps, for it was preempted, with two sat out. Job b's second was
-- aborted.
INSERT INTO engine (engine_id, block_size_tokens, blocks, policy, prefix_caching) VALUES (1, 16, 100, 'fcfs', true);
INSERT INTO request (request, engine_id, session, turn, arrival_ns, finished_ns, finish_reason, output_tokens) VALUES
    (1, 1, 'a', 1, 0, 5, 'stop', 3),
    (2, 1, 'b', 1, 2000000000, 2000000001, 'length', 2),
    (3, 1, 'a', 2, 5000000000, 5000000001, 'stop', 4),
    (4, 1, 'b', 2, 6000000000, 6000000001, 'abort', 1);
INSERT INTO step_request (engine_id, step, request, phase, scheduled_tokens) VALUES
    (1, 1, 1, 'chunked_prefill', 64),
    (1, 2, 1, 'chunked_prefill', 20),
    (1, 3, 1, 'decode', 1),
    (1, 5, 1, 'decode', 1),
    (1, 3, 2, 'prefill', 30),
    (1, 4, 2, 'decode', 1),
    (1, 10, 3, 'prefill', 40),
    (1, 11, 3, 'decode', 1),
    (1, 14, 3, 'resumed', 42),
    (1, 15, 3, 'decode', 1),
    (1, 16, 3, 'decode', 1),
    (1, 17, 4, 'prefill', 9);
