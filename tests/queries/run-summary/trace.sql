-- Two engines. Engine 1: three steps of 10, 20 and 30 ms with 2, 4 and 8 of 10 blocks in use; engine 2: one step of 20 ms
-- with all 4 of its blocks in use, and one whose results were never seen.
INSERT INTO step_schedule (engine_id, step, start_ns, scheduled_ns, used_blocks, free_blocks, preempted_requests,
    resumed_tokens) VALUES
    (1, 1, 1000000000, 1001000000, 2, 8, 0, 0),
    (1, 2, 1010000000, 1011000000, 4, 6, 1, 0),
    (1, 3, 1030000000, 1031000000, 8, 2, 0, 7),
    (2, 1, 1000000000, 1001000000, 4, 0, 2, 5),
    (2, 2, 1050000000, 1051000000, 0, 4, 0, 0);
INSERT INTO step_update (engine_id, step, update_ns, end_ns) VALUES
    (1, 1, 1009000000, 1010000000),
    (1, 2, 1029000000, 1030000000),
    (1, 3, 1059000000, 1060000000),
    (2, 1, 1019000000, 1020000000);
-- The first request arrives 40 ms before the first step and of where the kept part begins, the last one to end does so 100 ms after the last step began;
-- one never reached an engine, one never ended. First tokens came after 46 and 80 ms, further ones every 6 and 5 ms.
INSERT INTO request (request, engine_id, arrival_ns, queued_ns, first_token_ns, finished_ns, prompt_tokens, output_tokens)
VALUES
    (1, 1, 960000000, 961000000, 1006000000, 1060000000, 100, 10),
    (2, 2, NULL, 990000000, 1015000000, 1160000000, 60, 30),
    (3, 1, 1000000000, 1001000000, 1080000000, NULL, 40, 0),
    (4, NULL, 1000000000, NULL, NULL, NULL, NULL, NULL);
-- Of 100 + 60 tokens looked up, 16 + 32 + 16 were found; blocked, resumed and disabled lookups do not count.
INSERT INTO prefix_lookup (engine_id, step, request, queried_tokens, local_hit_tokens, external_hit_tokens, admitted,
    enabled, resumed) VALUES
    (1, 1, 1, 100, 16, 32, true, true, false),
    (2, 1, 2, 60, 16, NULL, true, true, false),
    (1, 1, 1, 1000, 0, 0, false, true, false),
    (1, 3, 1, 1000, 0, 0, true, true, true),
    (1, 3, 3, 1000, 0, 0, true, false, false);
INSERT INTO block_event (engine_id, time_ns, block_id, op, pool) VALUES
    (1, 1000000000, 1, 'evict', 0), (1, 1000000000, 2, 'evict', 0), (1, 1000000000, 3, 'evict', 1),
    (2, 1000000000, 1, 'allocate', 0);
-- Five records were lost in two streams.
INSERT INTO stream (process_id, event, records, dropped) VALUES (1, 'block_event', 10, 2), (2, 'request_event', 7, 3);
-- The recording is the last part of a longer one, whole from the first step on: 1.16 s - 1 s, not - 0.96 s. Steps of tiles
-- are no records.
INSERT INTO discarded VALUES
    (1, 'block_event', 3, 30, 49152, 4, 1000000000),
    (2, 'request_event', 1, 12, 16384, 0, 990000000),
    (2, 'tiles', 1, 900, 1000000, 0, 980000000);
-- Two hosts, whose clocks agree to a quarter of a millisecond.
INSERT INTO process (process_id, host_clock) VALUES (1, 1), (2, 2);
INSERT INTO host_clock (host_clock, uncertainty_ns) VALUES (1, 0), (2, 250000);
