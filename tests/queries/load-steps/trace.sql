-- Engine 1: steps that decode take 10 ms, 1 of them in the scheduler. Step 3 loads 100 blocks with two workers and takes 4 ms more, 1
-- of them in the scheduler. Step 4 loads 300 in two transfers and takes 20 ms more. Step 5 loads, too, but step 6 has a prefill, so
-- nothing tells what is step 5's own. Step 7 stores. Engine 2 has no usual time: its only step is a prefill's. Engine 3 has no connector.
INSERT INTO step_schedule BY NAME SELECT
    engine_id, start_ms * 1000000 AS start_ns, (start_ms + planned_ms) * 1000000 AS scheduled_ns, step, prefill AS prefill_tokens,
    0 AS chunked_prefill_tokens, decode AS decode_tokens, 0 AS resumed_tokens
FROM (VALUES
    (1, 1, 0, 1, 0, 4), (1, 2, 10, 1, 0, 4), (1, 3, 20, 2, 0, 4), (1, 4, 34, 1, 0, 4), (1, 5, 64, 1, 0, 4), (1, 6, 74, 1, 90, 4),
    (1, 7, 100, 1, 0, 4), (2, 1, 0, 1, 90, 0), (3, 1, 0, 1, 0, 4)
) AS t(engine_id, step, start_ms, planned_ms, prefill, decode);
INSERT INTO step_update (engine_id, step, update_ns, end_ns) VALUES
    (1, 1, 10000000, 10000000), (1, 2, 20000000, 20000000), (1, 3, 34000000, 34000000), (1, 4, 64000000, 64000000),
    (1, 5, 74000000, 74000000), (1, 6, 100000000, 100000000), (1, 7, 110000000, 110000000), (2, 1, 50000000, 50000000),
    (3, 1, 10000000, 10000000);
INSERT INTO transfer_submit (process_id, engine_id, step, transfer, connector, direction, blocks) VALUES
    (10, 1, 3, 1, 'SimpleCPUOffloadConnector', 'load', 100), (11, 1, 3, 1, 'SimpleCPUOffloadConnector', 'load', 100),
    (10, 1, 4, 2, 'SimpleCPUOffloadConnector', 'load', 200), (10, 1, 4, 3, 'SimpleCPUOffloadConnector', 'load', 100),
    (10, 1, 5, 4, 'SimpleCPUOffloadConnector', 'load', 50), (10, 1, 7, 5, 'SimpleCPUOffloadConnector', 'store', 70),
    (12, 2, 1, 6, 'OffloadingConnector', 'load', 10);
INSERT INTO transfer_end (process_id, transfer, finished_ns, device_ns) VALUES (10, 1, 34000000, 5000000), (11, 1, 34000000, 6000000);
