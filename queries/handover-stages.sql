-- Where does a handover's time go, from the decode engine's arrival to its first step with the loaded blocks?
--
-- One row per request whose KV a decode engine read from a prefill engine with NIXL (view handover_load). latency_ms is
-- from the request's arrival at the decode engine's API process to the scheduling of its first step there, which waits
-- for the load. The stages follow each other: intake, scheduler, dispatch, handshake, posting, wire, notification,
-- admission. Both ends of each were observed, by one host's clock. Where one was not, the stages beside it are NULL and
-- their time is in residual_ms.
--
-- The wire stage ends when NIXL knew that all was there, by its telemetry; without it, when the worker knew. NIXL
-- notices an end when the worker asks, once a step: the last byte came between wire_least_ms and wire_ms after posting.
-- The prefill engine finds NIXL's notification release_ms after that, beside the other stages.
--
-- group: Offload
-- needs: handover_load
-- words: nixl, disaggregated, prefill, decode, latency, descriptors, wire, notification, admission
-- key: external_id, latency_ms, scheduler_ms, posting_ms, wire_ms, notification_ms, admission_ms, descriptors
-- worst: latency_ms
-- column: prefill_request derived | The request in the prefill engine; NULL if that was not ingested.
-- column: decode_request recorded | The request in the decode engine.
-- column: external_id recorded | The id the client knows.
-- column: prefill_engine_id derived | The prefill engine.
-- column: decode_engine_id recorded | The decode engine.
-- column: latency_ms [ms] derived | Arrival at the decode engine to its first step with the loaded blocks.
-- column: intake_ms [ms] derived | Arrival to the scheduler's queue.
-- column: scheduler_ms [ms] derived | Waiting in the scheduler, until it gave blocks to load into.
-- column: dispatch_ms [ms] derived | From there until a worker took the load up.
-- column: handshake_ms [ms] derived | From there until it prepared descriptors: the first contact with another engine,
--     else next to nothing.
-- column: posting_ms [ms] derived | Preparing and posting descriptors.
-- column: wire_ms [ms] derived | From there until NIXL knew that all was there; 0 if it was when posting returned.
-- column: notification_ms [ms] derived | From there until the scheduler was told: the worker asks once a step and
--     tells with the step's results.
-- column: admission_ms [ms] derived | From there until the first step with these blocks was scheduled.
-- column: residual_ms [ms] derived | latency_ms less the stages that are known.
-- column: wire_least_ms [ms] derived | At least so long it was on the wire: a worker asked then, and it had not ended.
-- column: nixl_ms [ms] derived | By NIXL's telemetry, from the beginning of posting to the end of the last read.
-- column: nixl_post_ms [ms] recorded | By NIXL's telemetry, posting, all reads together.
-- column: release_ms [ms] derived | From the end on the wire until the prefill engine had found the notification: until
--     then it keeps the blocks. Below 0: NIXL had notified it, and did not know yet that it was done. By two clocks,
--     uncertainty_ms apart.
-- column: uncertainty_ms [ms] derived | How far the two engines' clocks may be apart; 0 on one host, NULL if not known.
-- column: reads [transfers] recorded | Transfer handles.
-- column: failed_reads [transfers] recorded | Of these, those that failed.
-- column: descriptors recorded | Descriptors that vLLM asked for: a block of a region each.
-- column: posted_descriptors recorded | Descriptors after NIXL joined adjacent ones.
-- column: bytes [bytes] recorded | Bytes read.

WITH stage AS (
    SELECT
        *,
        CASE WHEN posted_ns <= seen_ns THEN greatest(least(coalesce(nixl_end_ns, seen_ns), seen_ns), posted_ns) END
            AS there_ns,
        scheduled_ns - arrival_ns AS latency,
        queued_ns - arrival_ns AS intake,
        admitted_ns - queued_ns AS scheduler,
        begin_ns - admitted_ns AS dispatch,
        prepare_ns - begin_ns AS handshake,
        posted_ns - prepare_ns AS posting,
        there_ns - posted_ns AS wire,
        told_ns - there_ns AS notification,
        scheduled_ns - told_ns AS admission,
        coalesce(intake, 0) + coalesce(scheduler, 0) + coalesce(dispatch, 0) + coalesce(handshake, 0)
        + coalesce(posting, 0) + coalesce(wire, 0) + coalesce(notification, 0) + coalesce(admission, 0) AS known
    FROM handover_load
)
SELECT
    s.prefill_request,
    s.decode_request,
    r.external_id,
    s.prefill_engine_id,
    s.decode_engine_id,
    s.latency / 1e6 AS latency_ms,
    s.intake / 1e6 AS intake_ms,
    s.scheduler / 1e6 AS scheduler_ms,
    s.dispatch / 1e6 AS dispatch_ms,
    s.handshake / 1e6 AS handshake_ms,
    s.posting / 1e6 AS posting_ms,
    s.wire / 1e6 AS wire_ms,
    s.notification / 1e6 AS notification_ms,
    s.admission / 1e6 AS admission_ms,
    (s.latency - s.known) / 1e6 AS residual_ms,
    CASE WHEN s.posted_ns IS NOT NULL THEN greatest(coalesce(s.running_ns - s.posted_ns, 0), 0) / 1e6 END
        AS wire_least_ms,
    (s.nixl_end_ns - s.nixl_start_ns) / 1e6 AS nixl_ms,
    s.nixl_post_ns / 1e6 AS nixl_post_ms,
    (s.notice_ns - coalesce(s.nixl_end_ns, s.seen_ns)) / 1e6 AS release_ms,
    s.uncertainty_ns / 1e6 AS uncertainty_ms,
    s.reads,
    s.failed_reads,
    s.descriptors,
    s.posted_descriptors,
    s.bytes
FROM stage s LEFT JOIN request r ON r.request = s.decode_request
ORDER BY s.arrival_ns, s.decode_request
