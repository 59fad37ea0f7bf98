-- Blocks of 16 tokens. A prompt of 40 tokens in one step, then two decodes.
INSERT INTO engine BY NAME SELECT 1 AS engine_id, 16 AS block_size_tokens;
INSERT INTO step_request BY NAME SELECT 1 AS engine_id, * FROM (VALUES
    (1, 1, 'prefill'::e_phase, 40, 0), (2, 1, 'decode', 1, 40), (3, 1, 'decode', 1, 41))
    AS s(step, request, phase, scheduled_tokens, computed_tokens);
