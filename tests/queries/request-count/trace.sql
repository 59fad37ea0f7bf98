-- Six requests, a second apart, of which the fourth never generates. Hits: 0, 50, 0, 80 and 40 of 100 tokens.
INSERT INTO engine (engine_id, block_size_tokens, blocks, policy, prefix_caching) VALUES (1, 16, 100, 'fcfs', true);
INSERT INTO request BY NAME
SELECT request, 1 AS engine_id, session, arrival * 1000000::BIGINT AS arrival_ns, scheduled * 1000000::BIGINT AS scheduled_ns,
    first_token * 1000000::BIGINT AS first_token_ns, finished * 1000000::BIGINT AS finished_ns, prompt_tokens,
    10 AS output_tokens, local AS local_cached_tokens, external AS external_cached_tokens
FROM (VALUES
    (1, NULL, 0, 0, 500, 1000, 100, 0, NULL),
    (2, NULL, 1000, 1000, 1100, 3000, 100, 32, 18),
    (3, NULL, 2000, 2000, 2300, 2500, 100, 0, NULL),
    (4, NULL, 3000, NULL, NULL, NULL, 100, NULL, NULL),
    (5, NULL, 4000, 4000, 4100, 5000, 100, 80, NULL),
    (6, NULL, 5000, 5000, 5200, 8000, 100, 40, NULL)
) t(request, session, arrival, scheduled, first_token, finished, prompt_tokens, local, external);
