-- Blocks of 16 tokens and 32,000 bytes (2,000 a token), loads at 10^8 bytes a second (20,000 ns a token), computing at
-- 10,000 ns a token and 100 ns a token of context.
--
-- Request 1 lost 64 tokens to a preemption, finds 48 and computes 17 again in steps 7 and 8: from 7,000,000 to 12,000,000 ns.
-- Request 2's prefix was evicted: 32 tokens are computed again; its first token comes 4,000,000 ns after the lookup.
-- Request 3's prefix of 96 tokens comes from a connector; its first token comes 2,000,000 ns after the lookup.
-- Request 4 is new: no event. Steps 7, 20 and 30 leave 2, 5 and 5 requests running and 1, 5 and 10 of 10 blocks free.
INSERT INTO engine (engine_id, model, block_size_tokens, block_bytes) VALUES (1, 'm', 16, 32000);
INSERT INTO cost_model (engine_id, composition, used, ns_per_token, ns_per_token_context) VALUES
    (1, 'with_prefill', true, 10000, 100);
INSERT INTO transfer_rate VALUES (1, 'load', 'host', 3, 1000, 10000, 1e8);
INSERT INTO request (request, engine_id, first_token_ns) VALUES
    (1, 1, 100), (2, 1, 24000000), (3, 1, 32000000), (4, 1, 41000000);
INSERT INTO request_event (engine_id, time_ns, step, request, op, computed_tokens) VALUES (1, 5000000, 5, 1, 'preempt', 64);
INSERT INTO prefix_miss (engine_id, time_ns, step, request, resumed, verdict, queried_tokens, local_hit_tokens,
    external_hit_tokens, avoidable_tokens)
VALUES
    (1, 10, 1, 1, false, 'never_stored', 60, 0, 0, 0),
    (1, 7000000, 7, 1, true, 'evicted', 65, 48, 0, 16),
    (1, 20000000, 20, 2, false, 'evicted', 130, 32, 0, 32),
    (1, 30000000, 30, 3, false, 'shorter_than_block', 100, 0, 96, 0),
    (1, 40000000, 40, 4, false, 'never_stored', 50, 0, 0, 0);
INSERT INTO step_request (engine_id, step, request, phase, scheduled_tokens, computed_tokens) VALUES
    (1, 1, 1, 'prefill', 60, 0),
    (1, 7, 1, 'resumed', 10, 48),
    (1, 8, 1, 'resumed', 7, 58),
    (1, 9, 1, 'decode', 1, 65);
INSERT INTO step_update (engine_id, end_ns, step) VALUES (1, 1000, 1), (1, 9000000, 7), (1, 12000000, 8), (1, 15000000, 9);
INSERT INTO step_schedule (engine_id, step, running, free_blocks, used_blocks) VALUES
    (1, 7, 2, 1, 9), (1, 20, 5, 5, 5), (1, 30, 5, 10, 0);
