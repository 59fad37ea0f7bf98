-- Request 1 ran to its end and was preempted for 4 ms while decoding. Request 2 was aborted in the queue.
-- Request 3 still decodes when the recording ends. Request 4 has one output token and no known arrival. The client of
-- request 2 left before the engine heard of it. Request 5 has two samples, 6 and 7, of which the second ended 4 ms later.
INSERT INTO request (request, engine_id, external_id, session, turn, prompt_tokens, output_tokens, preemptions, arrival_ns,
    queued_ns, scheduled_ns, first_token_ns, finished_ns, finish_reason)
VALUES
    (1, 1, 'a', 's', 1, 100, 5, 1, 1000000, 2000000, 12000000, 42000000, 62000000, 'length'),
    (2, 1, 'b', NULL, NULL, 50, NULL, 0, 3000000, 3500000, NULL, NULL, 9500000, 'abort'),
    (3, 1, 'c', NULL, NULL, 60, 2, 0, 2000000, 2500000, 3000000, 4000000, NULL, NULL),
    (4, NULL, NULL, NULL, NULL, 10, 1, 0, NULL, 500000, 1500000, 3500000, 3600000, 'stop');
INSERT INTO request_event (engine_id, time_ns, step, request, op) VALUES
    (1, 12000000, 1, 1, 'schedule'),
    (1, 42000000, 2, 1, 'first_token'),
    (1, 50000000, 4, 1, 'preempt'),
    (1, 54000000, 6, 1, 'resume'),
    (1, 62000000, 9, 1, 'finish');
INSERT INTO request_delivery (process_id, time_ns, request, first_ns) VALUES
    (2, 65000000, 1, 44000000), (2, 9000000, 2, NULL), (2, 4500000, 4, NULL);
INSERT INTO request (request, engine_id, internal_id, external_id, session, prompt_tokens, output_tokens, preemptions, arrival_ns,
    queued_ns, scheduled_ns, first_token_ns, finished_ns, finish_reason)
VALUES
    (5, NULL, 'd-5', 'd', NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL),
    (6, 1, '0_d-5', NULL, 's', 40, 3, 0, 80000000, 80100000, 82000000, 85000000, 89000000, 'length'),
    (7, 1, '1_d-5', NULL, 's', 40, 5, 0, 80000000, 80500000, 82000000, 86000000, 93000000, 'length');
INSERT INTO request_delivery (process_id, time_ns, request, first_ns) VALUES (2, 93500000, 5, 85500000);
UPDATE request SET tenant = 'acme', lora = 'sql' WHERE request = 1;
UPDATE request SET tenant = 'globex' WHERE request IN (5, 6, 7);
