-- Job a: turns of 2 s and 4 s. Job b, 2 s later: one of 1 s, one aborted, one still running. A request of no job.
INSERT INTO engine (engine_id, block_size_tokens, blocks, policy, prefix_caching) VALUES (1, 16, 100, 'fcfs', true);
INSERT INTO request BY NAME
SELECT request, 1 AS engine_id, session, turn, arrival * 1000000::BIGINT AS arrival_ns, scheduled * 1000000::BIGINT AS scheduled_ns,
    first_token * 1000000::BIGINT AS first_token_ns, finished * 1000000::BIGINT AS finished_ns, reason::e_finish_reason AS finish_reason,
    output_tokens
FROM (VALUES
    (1, 'a', 0, 0, 500, 1000, 2000, 'stop', 10),
    (2, 'a', 1, 3000, 3500, 5000, 7000, 'length', 20),
    (3, 'b', 0, 2000, 2000, 2500, 3000, NULL, 30),
    (4, 'b', 1, 4000, 4000, 4500, 5000, 'abort', 5),
    (5, 'b', 2, 6000, 6000, 6500, NULL, NULL, 5),
    (6, NULL, NULL, 9000, 9000, 9500, 10000, 'stop', 5)
) t(request, session, turn, arrival, scheduled, first_token, finished, reason, output_tokens);
