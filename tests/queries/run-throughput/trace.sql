-- Step 1 computes two prompts in 100 ms, step 2 decodes both in 50 ms and one ends, step 3 has no tokens, step 4 decodes the
-- other in 50 ms after 199 ms of nothing, step 5's results were never recorded.
INSERT INTO engine BY NAME SELECT 1 AS engine_id, 'tiny' AS model, 4 AS max_num_seqs, 16 AS block_size_tokens, 10 AS blocks,
    64 AS max_num_batched_tokens, 'fcfs' AS policy, true AS prefix_caching;
INSERT INTO step_schedule BY NAME SELECT 1 AS engine_id, start_ns AS scheduled_ns, 0 AS chunked_prefill_requests,
    0 AS chunked_prefill_tokens, 0 AS resumed_requests, 0 AS resumed_tokens, * FROM (VALUES
    (1, 0, 2, 20, 0, 0, 2, 8, 0), (2, 100000000, 0, 0, 2, 2, 3, 7, 1), (3, 150000000, 0, 0, 0, 0, 2, 8, 0),
    (4, 350000000, 0, 0, 1, 1, 1, 9, 0), (5, 400000000, 0, 0, 1, 1, 1, 9, 0)
) AS s(step, start_ns, prefill_requests, prefill_tokens, decode_requests, decode_tokens, used_blocks, free_blocks,
    preempted_requests);
INSERT INTO step_update BY NAME SELECT 1 AS engine_id, * FROM (VALUES
    (1, 100000000, 2, 0), (2, 150000000, 2, 1), (3, 151000000, 0, 0), (4, 400000000, 1, 1)
) AS u(step, end_ns, output_tokens, finished_requests);
