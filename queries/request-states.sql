-- What was each request doing when: queued, in prefill, decoding, preempted, computing again what it lost?
--
-- One row per stretch of a request's life, as view `request_state` has them: put together from the turns that the
-- scheduler recorded. A resumed request computes tokens again until the last step of that phase has ended; where all
-- its KV was still in the prefix cache it has no such step and goes on at once. A first token that comes back after
-- its request was preempted does not end the preemption: under async scheduling results arrive late. Stretches without
-- duration are left out.
--
-- group: Requests and jobs
-- needs: request
-- key: request, state, start_ns, end_ns
-- column: engine_id recorded | The engine that served it.
-- column: request recorded | Key of table `request`.
-- column: state derived | queued, prefill, decode, preempted or resumed.
-- column: start_ns [ns] recorded | From when, UNIX time.
-- column: end_ns [ns] recorded | To when; NULL if the recording ended before.

SELECT engine_id, request, state, start_ns, end_ns
FROM request_state
ORDER BY start_ns, request
