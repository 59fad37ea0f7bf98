-- Phase unique (three requests, 0 to 2.9 s), then shared (two, from 2.5 s, before the first had ended), then one without
-- a tag that never generates.
INSERT INTO engine (engine_id, block_size_tokens, blocks, policy, prefix_caching) VALUES (1, 16, 100, 'fcfs', true);
INSERT INTO request BY NAME
SELECT request, 1 AS engine_id, session, arrival * 1000000::BIGINT AS arrival_ns, scheduled * 1000000::BIGINT AS scheduled_ns,
    first_token * 1000000::BIGINT AS first_token_ns, finished * 1000000::BIGINT AS finished_ns, prompt_tokens,
    local AS local_cached_tokens, external AS external_cached_tokens
FROM (VALUES
    (1, 'unique-1', 0, 0, 900, 950, 100, 0, NULL),
    (2, 'unique-2', 1000, 1000, 1300, 1900, 100, 0, NULL),
    (3, 'unique-10', 2000, 2000, 2100, 2900, 300, 0, 0),
    (4, 'shared/7', 2500, 2500, 2700, 3900, 100, 0, 0),
    (5, 'shared/8', 4000, 4000, 4100, 4900, 100, 32, 16),
    (6, NULL, 5000, 5100, NULL, NULL, 32, 0, NULL)
) t(request, session, arrival, scheduled, first_token, finished, prompt_tokens, local, external);
