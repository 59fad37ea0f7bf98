-- Where does the time to the first token go when one engine computes the prompt and another the answer?
--
-- One row per request that was handed over (table handover). The parts add up to ttft_ms: waiting and computing in the
-- prefill engine, the way to the decode engine through whoever routes, waiting there, loading the KV, and the first
-- decode step. An asynchronous load is cut out of the waiting time; a synchronous one is that of the request's first
-- step and shared with the step's other requests. uncertainty_ms is how far handover_ms and ttft_ms, whose ends two
-- hosts read, may be off; the other parts are of one clock each.
--
-- group: Offload
-- needs: request, handover
-- key: external_id, ttft_ms, prefill_ms, handover_ms, transfer_ms, decode_ms
-- worst: ttft_ms
-- column: prefill_request recorded | The request in the prefill engine.
-- column: decode_request recorded | The request in the decode engine.
-- column: external_id recorded | The id the client knows.
-- column: prefill_engine_id recorded | The prefill engine.
-- column: decode_engine_id recorded | The decode engine.
-- column: matched_by derived | What joined the two.
-- column: loaded_tokens [tokens] recorded | Tokens whose KV came from the prefill engine.
-- column: ttft_ms [ms] derived | From the arrival in the prefill engine to the decode engine's first token.
-- column: prefill_queue_ms [ms] recorded | Arrival in the prefill engine to admission.
-- column: prefill_ms [ms] recorded | Admission to the end there, saving of KV included.
-- column: handover_ms [ms] derived | End there to arrival in the decode engine, by two clocks.
-- column: decode_queue_ms [ms] derived | Arrival in the decode engine to admission, less an asynchronous load.
-- column: transfer_ms [ms] derived | Loading the KV; NULL if it was not recorded, then part of its neighbours.
-- column: decode_ms [ms] derived | Admission to the first token, less a synchronous load.
-- column: uncertainty_ms [ms] derived | How far the two engines' clocks may be apart; 0 on one host, NULL if not known.

WITH part AS (
    SELECT
        *,
        greatest(coalesce(load_end_ns - load_start_ns, 0), 0) AS load_ns,
        CASE WHEN asynchronous = 'yes' THEN load_ns ELSE 0 END AS load_in_queue_ns,
        CASE WHEN asynchronous = 'no' THEN load_ns ELSE 0 END AS load_in_step_ns
    FROM handover
)
SELECT
    prefill_request,
    decode_request,
    external_id,
    prefill_engine_id,
    decode_engine_id,
    matched_by,
    loaded_tokens,
    (first_token_ns - prefill_arrival_ns) / 1e6 AS ttft_ms,
    (prefill_scheduled_ns - prefill_arrival_ns) / 1e6 AS prefill_queue_ms,
    (prefill_end_ns - prefill_scheduled_ns) / 1e6 AS prefill_ms,
    (decode_arrival_ns - prefill_end_ns) / 1e6 AS handover_ms,
    (decode_scheduled_ns - decode_arrival_ns - load_in_queue_ns) / 1e6 AS decode_queue_ms,
    (load_end_ns - load_start_ns) / 1e6 AS transfer_ms,
    (first_token_ns - decode_scheduled_ns - load_in_step_ns) / 1e6 AS decode_ms,
    uncertainty_ns / 1e6 AS uncertainty_ms
FROM part
ORDER BY prefill_arrival_ns, decode_request
