-- A budget of 100 tokens. Two steps of prompts, of which the second computes a part of one; a mixed one; two of decoding; one
-- without tokens.
INSERT INTO step_schedule BY NAME SELECT 1 AS engine_id, 100 AS budget_tokens, 0 AS resumed_requests, 0 AS resumed_tokens, *
FROM (VALUES
    (1, 1000, 2, 60, 0, 0, 0, 0), (2, 2000, 1, 20, 1, 80, 0, 0), (3, 3000, 0, 0, 1, 46, 4, 4), (4, 4000, 0, 0, 0, 0, 5, 5),
    (5, 5000, 0, 0, 0, 0, 3, 3), (6, 6000, 0, 0, 0, 0, 0, 0)
) AS s(step, scheduled_ns, prefill_requests, prefill_tokens, chunked_prefill_requests, chunked_prefill_tokens,
    decode_requests, decode_tokens);
