-- Job a calls cd, then grep, then ends. Job b calls cd twice: after the first call 60 of its 100 known tokens were cached;
-- the second call is followed by nothing. In phase 1 one call, after which the engine did not tell what was cached.
INSERT INTO client_request (request_id, phase, workload, session, turn, tool, tool_ms, send_ns, first_token_ns,
    prompt_tokens, output_tokens, cached_tokens)
VALUES
    ('a0', 0, 'w', 'a', 0, 'cd', 10, 0, 2000000, 90, 10, 0),
    ('a1', 0, 'w', 'a', 1, 'grep', 300, 20000000, 24000000, 150, 50, 80),
    ('a2', 0, 'w', 'a', 2, NULL, NULL, 400000000, 406000000, 300, 10, 200),
    ('b0', 0, 'w', 'b', 0, 'cd', 30, 0, 2000000, 95, 5, 0),
    ('b1', 0, 'w', 'b', 1, 'cd', 20, 40000000, 48000000, 150, 10, 60),
    ('c0', 1, 'w', 'a', 0, 'cd', 40, 500000000, 501000000, 10, 10, 0),
    ('c1', 1, 'w', 'a', 1, NULL, NULL, 600000000, 601000000, 30, 10, NULL);
