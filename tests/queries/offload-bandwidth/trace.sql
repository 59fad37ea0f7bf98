-- Stores: 500 bytes from 0.1 to 0.6 s; 1000 bytes from 0.5 s, when work on it began, to 1.5 s. A load of 200 bytes from 3.0
-- to 3.2 s. One transfer has not ended, one does not tell its bytes. The first stretch begins at 0.1 s.
INSERT INTO transfer_submit (process_id, engine_id, transfer, submitted_ns, direction, bytes) VALUES
    (2, 1, 1, 100000000, 'store', 500),
    (2, 1, 2, 400000000, 'store', NULL),
    (2, 1, 3, 3000000000, 'load', 200),
    (2, 1, 4, 4000000000, 'load', 200),
    (2, 1, 5, 5000000000, 'store', NULL);
INSERT INTO transfer_end (process_id, transfer, started_ns, finished_ns, bytes) VALUES
    (2, 1, NULL, 600000000, NULL),
    (2, 2, 500000000, 1500000000, 1000),
    (2, 3, NULL, 3200000000, NULL),
    (2, 5, NULL, 5500000000, NULL);
