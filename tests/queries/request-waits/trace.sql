-- Request 2 heads the queue in steps 1 to 3, twice for want of blocks; request 3 once.
INSERT INTO request (request, engine_id, external_id, session, turn) VALUES (2, 1, 'b', 's', 4);
INSERT INTO step_schedule
    (engine_id, step, admission_limit, limit_request, limit_need_blocks, limit_free_blocks, limit_kept_blocks)
VALUES
    (1, 1, 'kv_insufficient', 2, 8, 3, 0),
    (1, 2, 'kv_insufficient', 2, 8, 5, 0),
    (1, 3, 'max_num_seqs', 2, NULL, NULL, NULL),
    (1, 4, 'none', NULL, NULL, NULL, NULL),
    (1, 5, 'token_budget', 3, NULL, NULL, NULL);
