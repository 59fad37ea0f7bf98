-- Engine 1, blocks of 16 tokens: a step is planned in 100 us. In step 3 the connector is asked about 160 tokens, which are 10
-- blocks and take 200 us more, of which the question takes 20; part 1 of it is in part 0. In step 4 it is asked about 40 tokens
-- twice, 80 us more, and two workers load 20 blocks, 60 us more. In step 5 they load 10 blocks, 50 us more. Engine 2 has no
-- connector. Engine 3's was only asked, about a request that is not in the trace, by an earlier kvtrace.
INSERT INTO engine (engine_id, block_size_tokens) VALUES (1, 16), (2, 16), (3, 16);
INSERT INTO request (request, engine_id, prompt_tokens) VALUES (1, 1, 160), (2, 1, 40);
INSERT INTO step_schedule (engine_id, step, start_ns, scheduled_ns) VALUES
    (1, 1, 0, 100000), (1, 2, 1000000, 1100000), (1, 3, 2000000, 2300000), (1, 4, 3000000, 3240000), (1, 5, 4000000, 4150000),
    (2, 1, 0, 100000), (3, 1, 0, 500000);
INSERT INTO connector_lookup (engine_id, time_ns, asked_ns, step, request, part, connector) VALUES
    (1, 2030000, 2010000, 3, 1, 0, 'OffloadingConnector'), (1, 2020000, 2010000, 3, 1, 1, 'OffloadingConnector'),
    (1, 3030000, 3020000, 4, 2, 0, 'OffloadingConnector'), (1, 3050000, 3040000, 4, 2, 0, 'OffloadingConnector'),
    (3, 100000, NULL, 1, 9, 0, 'LMCacheConnectorV1');
INSERT INTO transfer_submit (process_id, engine_id, step, transfer, connector, direction, blocks) VALUES
    (10, 1, 4, 1, 'OffloadingConnector', 'load', 20), (11, 1, 4, 1, 'OffloadingConnector', 'load', 20),
    (10, 1, 5, 2, 'OffloadingConnector', 'load', 10), (11, 1, 5, 2, 'OffloadingConnector', 'load', 10),
    (10, 1, 2, 3, 'OffloadingConnector', 'store', 99);
