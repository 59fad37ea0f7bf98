-- Request 1 is never preempted. Request 2 is preempted while its first token is on its way, and computes it all again in
-- two steps. Request 3 finds all its KV again when it resumes. Request 4 has not ended. Request 5 never reached an engine.
INSERT INTO request (request, engine_id, arrival_ns, queued_ns) VALUES
    (1, 7, 90, 100), (2, 7, 100, 110), (3, 7, NULL, 120), (4, 7, 600, NULL), (5, NULL, NULL, NULL);
INSERT INTO step_update (engine_id, step, update_ns, end_ns) VALUES
    (7, 1, 240, 250), (7, 2, 340, 350), (7, 3, 440, 450), (7, 4, 540, 550), (7, 5, 640, 650);
INSERT INTO step_request (engine_id, step, request, phase) VALUES
    (7, 1, 1, 'prefill'), (7, 1, 2, 'prefill'), (7, 1, 3, 'prefill'), (7, 2, 1, 'decode'), (7, 3, 2, 'resumed'),
    (7, 4, 2, 'resumed'), (7, 5, 2, 'decode'), (7, 4, 3, 'decode'), (7, 5, 4, 'chunked_prefill');
INSERT INTO request_event (engine_id, request, step, time_ns, op) VALUES
    (7, 1, 1, 200, 'schedule'), (7, 1, 1, 245, 'first_token'), (7, 1, 2, 345, 'finish'),
    (7, 2, 1, 200, 'schedule'), (7, 2, 2, 230, 'preempt'), (7, 2, 1, 245, 'first_token'), (7, 2, 3, 400, 'resume'),
    (7, 2, 5, 645, 'finish'),
    (7, 3, 1, 120, 'schedule'), (7, 3, 1, 245, 'first_token'), (7, 3, 2, 300, 'preempt'), (7, 3, 4, 500, 'resume'),
    (7, 3, 4, 545, 'finish'),
    (7, 4, 5, 610, 'schedule');
