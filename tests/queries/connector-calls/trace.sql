-- Engine 1: two workers save in step 1, the slower one for 6 ms, and in step 2, the other one for 4; one loads in step 2 in two
-- calls. The slower one waited for 3 ms before it stored in step 1, the faster one for 4; a store that began after its call,
-- as OffloadingConnector's, was not waited for. Part 1 is in the calls of part 0. Step 3 has no record of the scheduler. Engine 2's connector does next to nothing.
INSERT INTO step_schedule BY NAME
SELECT * EXCLUDE (requests), 0 AS prefill_requests, 0 AS chunked_prefill_requests, requests AS decode_requests, 0 AS resumed_requests
FROM (VALUES (1, 1, 1000000, 2000000, 2), (1, 2, 11000000, 12000000, 3), (2, 1, 1000000, 2000000, 1))
    AS t(engine_id, step, start_ns, scheduled_ns, requests);
INSERT INTO step_update (engine_id, step, update_ns, end_ns) VALUES
    (1, 1, 9000000, 10000000), (1, 2, 29000000, 30000000), (2, 1, 9000000, 10000000);
INSERT INTO connector_call (process_id, start_ns, end_ns, engine_id, step, part, connector, call) VALUES
    (10, 2000000, 7000000, 1, 1, 0, 'LMCacheConnectorV1', 'save'), (11, 2000000, 8000000, 1, 1, 0, 'LMCacheConnectorV1', 'save'),
    (10, 13000000, 17000000, 1, 2, 0, 'LMCacheConnectorV1', 'save'), (11, 13000000, 14000000, 1, 2, 0, 'LMCacheConnectorV1', 'save'),
    (10, 12000000, 12500000, 1, 2, 0, 'LMCacheConnectorV1', 'load'), (10, 12500000, 13000000, 1, 2, 0, 'LMCacheConnectorV1', 'load'),
    (10, 2000000, 7000000, 1, 1, 1, 'LMCacheConnectorV1', 'save'),
    (10, 31000000, 31500000, 1, 3, 0, 'LMCacheConnectorV1', 'poll'),
    (20, 2000000, 2000200, 2, 1, 0, 'OffloadingConnector', 'poll');
INSERT INTO transfer_submit (process_id, engine_id, step, transfer, direction, submitted_ns) VALUES
    (11, 1, 1, 1, 'store', 2000000), (10, 1, 1, 1, 'store', 2000000), (10, 1, 2, 2, 'store', 13000000);
INSERT INTO transfer_end (process_id, transfer, started_ns, finished_ns) VALUES
    (11, 1, 5000000, 8000000), (10, 1, 6000000, 7000000), (10, 2, 19000000, 20000000);
