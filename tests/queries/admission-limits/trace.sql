-- Four steps of engine 1: two short of blocks (10 ms and 30 ms), the second with a watermark, one with nothing waiting
-- (60 ms), one without results.
INSERT INTO step_schedule
    (engine_id, start_ns, scheduled_ns, step, waiting, admission_limit, limit_request, limit_need_blocks, limit_free_blocks,
    limit_kept_blocks)
VALUES
    (1, 0, 1000, 1, 2, 'kv_insufficient', 5, 10, 4, 0),
    (1, 20000000, 20001000, 2, 4, 'kv_insufficient', 5, 20, 5, 5),
    (1, 60000000, 60001000, 3, 0, 'none', NULL, NULL, NULL, NULL),
    (1, 200000000, 200001000, 4, 1, 'max_num_seqs', 6, NULL, NULL, NULL);
INSERT INTO step_update (engine_id, step, update_ns, end_ns) VALUES
    (1, 1, 9000000, 10000000),
    (1, 2, 49000000, 50000000),
    (1, 3, 119000000, 120000000);
