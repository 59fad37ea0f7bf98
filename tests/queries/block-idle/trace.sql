-- Blocks of 16. Worker 2 has windows: passes of 100 ns at 0, 290 and 500, in each of which layer 0 writes for 10 ns and reads
-- for 20, layer 1 writes for 10 and reads for 40. Request 1 has 2 blocks in step 1, all written, and 3 in step 2, one written;
-- request 2 has 1 in step 1, written, and 2 in step 3, one written. So passes are held 2 + 1 + 3 + 2 times 100 ns, the time
-- between them is 2 * 190 + 1 * 400, and layer 0 touches blocks for 20 * (3 + 3 + 2) + 10 * (3 + 1 + 1) ns.
-- Worker 4 has none: request 3 waits 50 ns between steps 1 and 2, then is preempted and computed again in step 3.
-- Worker 6 has windows of every second step only: the time between passes is not known.
INSERT INTO engine BY NAME SELECT unnest([1, 3, 5]) AS engine_id, 16 AS block_size_tokens;
INSERT INTO step_request BY NAME SELECT * FROM (VALUES
    (1, 1, 1, 32, 0), (1, 2, 1, 1, 32), (1, 1, 2, 16, 0), (1, 3, 2, 1, 16),
    (3, 1, 3, 16, 0), (3, 2, 3, 1, 16), (3, 3, 3, 17, 0),
    (5, 1, 4, 5, 0), (5, 2, 4, 1, 5), (5, 3, 4, 1, 6)
) AS r(engine_id, step, request, scheduled_tokens, computed_tokens);
INSERT INTO kv_window BY NAME SELECT 2 AS process_id, 1 AS engine_id, step, layer, kind::e_window_kind AS kind,
    pass_ns + from_ns AS start_ns, pass_ns + to_ns AS end_ns
FROM (VALUES (1, 0), (2, 290), (3, 500)) AS p(step, pass_ns),
    (VALUES (0, 'write', 0, 10), (0, 'attention', 10, 30), (1, 'write', 50, 60), (1, 'attention', 60, 100))
        AS w(layer, kind, from_ns, to_ns);
INSERT INTO forward BY NAME SELECT 4 AS process_id, 3 AS engine_id, 1 AS tokens, * FROM (VALUES
    (1, 0, 100), (2, 150, 250), (3, 1000, 1100)) AS f(step, start_ns, end_ns);
INSERT INTO request_event BY NAME SELECT 3 AS engine_id, 3 AS request, 3 AS step, 'resume'::e_request_op AS op;
INSERT INTO kv_window BY NAME SELECT 6 AS process_id, 5 AS engine_id, 'attention'::e_window_kind AS kind, * FROM (VALUES
    (1, 0, 0, 40), (1, 1, 60, 100), (3, 0, 1000, 1040), (3, 1, 1060, 1100)) AS w(step, layer, start_ns, end_ns);
INSERT INTO forward BY NAME SELECT 6 AS process_id, 5 AS engine_id, 1 AS tokens, 2 AS step, 500 AS start_ns, 600 AS end_ns;
