-- Job a has no turn tags: its turns, of 2 s and 4 s, are numbered by arrival. Job b's, of 1 s each, are tagged. A third
-- turn of it has not ended.
INSERT INTO engine (engine_id, block_size_tokens, blocks, policy, prefix_caching) VALUES (1, 16, 100, 'fcfs', true);
INSERT INTO request BY NAME
SELECT request, 1 AS engine_id, session, turn, arrival * 1000000::BIGINT AS arrival_ns, scheduled * 1000000::BIGINT AS scheduled_ns,
    first_token * 1000000::BIGINT AS first_token_ns, finished * 1000000::BIGINT AS finished_ns, prompt_tokens,
    local AS local_cached_tokens, external AS external_cached_tokens
FROM (VALUES
    (1, 'a', NULL, 3000, 4000, 5000, 7000, 200, 96, 32),
    (2, 'a', NULL, 0, 500, 1000, 2000, 100, 0, NULL),
    (3, 'b', 1, 2000, 2200, 2400, 3000, 50, 16, 0),
    (4, 'b', 2, 5000, 5000, 5500, 6000, 100, 48, 0),
    (5, 'b', 3, 7000, 7000, 7500, NULL, 100, 48, 0)
) t(request, session, turn, arrival, scheduled, first_token, finished, prompt_tokens, local, external);
