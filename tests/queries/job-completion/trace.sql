-- Job a: 0 to 2 s, a tool of 1 s, 3 to 7 s. Job b: two turns that overlap (2 to 5 and 4 to 6 s, aborted), 2 s of nothing,
-- 8 to 9 s. Job c has not ended.
INSERT INTO engine (engine_id, block_size_tokens, blocks, policy, prefix_caching) VALUES (1, 16, 100, 'fcfs', true);
INSERT INTO request BY NAME
SELECT request, 1 AS engine_id, session, turn, arrival * 1000000::BIGINT AS arrival_ns, scheduled * 1000000::BIGINT AS scheduled_ns,
    finished * 1000000::BIGINT AS finished_ns, reason::e_finish_reason AS finish_reason, prompt_tokens,
    local AS local_cached_tokens, external AS external_cached_tokens, output_tokens, preemptions
FROM (VALUES
    (1, 'a', 0, 0, 500, 2000, 'stop', 100, 0, NULL, 10, 0),
    (2, 'a', 1, 3000, 3250, 7000, 'stop', 200, 96, 32, 20, 1),
    (3, 'b', 0, 2000, 2000, 5000, 'length', 100, 0, 0, 10, 0),
    (4, 'b', 1, 4000, 4500, 6000, 'abort', 100, 64, 0, 5, 2),
    (5, 'b', 2, 8000, 8000, 9000, 'length', 300, 64, 0, 10, 0),
    (6, 'c', 0, 10000, NULL, NULL, NULL, 50, NULL, NULL, NULL, 0)
) t(request, session, turn, arrival, scheduled, finished, reason, prompt_tokens, local, external, output_tokens, preemptions);
