-- Blocks of 16 tokens and 32,000 bytes: 2,000 bytes a token. Loading reaches 100,000,000 bytes a second: 20,000 ns a token.
-- Computing costs 10,000 ns a token and 100 ns a token of context. So n tokens cost as much either way when
-- 10,000 n + 50 n (n + 1) = 20,000 n, that is n = 199. At an assumed 1 GB/s a token loads in 2,000 ns: always cheaper.
--
-- Request 1 is preempted at step 5 with 64 tokens, resumes at step 7 with 48 of them cached and computes 17 tokens beside
-- 3 of a prompt and 3 of decoding. Request 2 ends while it waits. Request 3 resumes with everything cached.
--
-- Steps overlap. In us, end - max(start, end of the step before) is
--     step 4: 5300 - 3500 = 1800     step 6: 7900 - 5900 = 2000     step 8: 9450 - 8900 = 550
--     step 5: 5900 - 5300 =  600     step 7: 8900 - 7900 = 1000     step 9: 10200 - 9450 = 750, step 10: 10900 - 10200 = 700
-- Step 6 only decodes. It ends 900 us after step 7 started, since step 7 was launched meanwhile. So it is no usual step, and
-- the median of steps 4, 5, 8, 9 and 10 is 700. Step 7 added 1000 - 700 and, by step 6, 2000 - 700, together 1600 us, of which
-- request 1 has 17 tokens of 20: 1360 us.
INSERT INTO engine (engine_id, block_size_tokens, block_bytes) VALUES (1, 16, 32000);
INSERT INTO cost_model (engine_id, composition, used, ns_per_token, ns_per_token_context) VALUES
    (1, 'with_prefill', true, 10000, 100), (1, 'all', false, 1, 1);
INSERT INTO transfer_rate VALUES (1, 'load', 'host', 3, 1000, 10000, 1e8), (1, 'store', 'host', 3, 1, 1, 1);
INSERT INTO request (request, engine_id, external_id) VALUES (1, 1, 'a'), (2, 1, 'b'), (3, 1, 'c');
INSERT INTO request_event (engine_id, time_ns, step, request, op, computed_tokens, output_tokens, local_cached_tokens,
    external_cached_tokens, blocks)
VALUES
    (1, 5000000, 5, 1, 'preempt', 64, 5, NULL, NULL, 4),
    (1, 5000000, 5, 2, 'preempt', 20, 0, NULL, NULL, 2),
    (1, 7500000, 7, 1, 'resume', 48, 5, 48, 0, 3),
    (1, 8000000, 8, 2, 'finish', 0, 0, NULL, NULL, 0),
    (1, 9000000, 9, 3, 'preempt', 32, 1, NULL, NULL, 2),
    (1, 9500000, 10, 3, 'resume', 32, 1, 32, NULL, 2);
INSERT INTO step_schedule (engine_id, start_ns, step, prefill_requests, prefill_tokens, chunked_prefill_requests,
    chunked_prefill_tokens, decode_requests, decode_tokens, resumed_requests, resumed_tokens)
VALUES
    (1, 3500000, 4, 0, 0, 0, 0, 5, 5, 0, 0),
    (1, 4900000, 5, 0, 0, 0, 0, 3, 3, 0, 0),
    (1, 5400000, 6, 0, 0, 0, 0, 3, 3, 0, 0),
    (1, 7000000, 7, 1, 3, 0, 0, 3, 3, 1, 17),
    (1, 7950000, 8, 0, 0, 0, 0, 5, 5, 0, 0),
    (1, 8950000, 9, 0, 0, 0, 0, 4, 4, 0, 0),
    (1, 9460000, 10, 0, 0, 0, 0, 5, 5, 0, 0);
INSERT INTO step_update (engine_id, end_ns, step) VALUES
    (1, 5300000, 4), (1, 5900000, 5), (1, 7900000, 6), (1, 8900000, 7), (1, 9450000, 8), (1, 10200000, 9), (1, 10900000, 10);
INSERT INTO step_request (engine_id, step, request, phase, scheduled_tokens, computed_tokens) VALUES
    (1, 7, 1, 'resumed', 17, 48),
    (1, 8, 1, 'decode', 1, 65),
    (1, 10, 3, 'decode', 1, 32);
INSERT INTO prefix_miss (engine_id, time_ns, step, request, resumed, verdict) VALUES
    (1, 1, 1, 1, false, 'never_stored'),
    (1, 7400000, 7, 1, true, 'shorter_than_block'),
    (1, 9400000, 10, 3, true, 'shorter_than_block');
