-- A request whose KV a decode engine read from another engine, and where each stage of that ended.
--
-- It is handover_read by request, with what the decode engine's scheduler recorded before and after. With several
-- handles or workers a stage begins with the first and ends with the last. All times but notice_ns are those of the
-- decode engine's host. Requests of engines that are recorded without handover_read have no row.
--
-- needs: connector_news, handover, handover_notice, handover_read, pin, request
-- column: decode_request recorded | The request in the engine that read the KV.
-- column: decode_engine_id recorded | That engine.
-- column: prefill_request derived | The request in the engine that computed it; NULL if that was not ingested.
-- column: prefill_engine_id derived | That engine.
-- column: reads recorded | Transfer handles: one for each worker of one engine and each it reads from of the other.
-- column: failed_reads recorded | Of these, those that failed.
-- column: descriptors recorded | Descriptors that vLLM asked for.
-- column: posted_descriptors recorded | Descriptors after NIXL joined adjacent ones.
-- column: bytes [bytes] recorded | Bytes read.
-- column: arrival_ns [ns] recorded | When the request arrived at the decode engine's API process; else when it was
--     queued.
-- column: queued_ns [ns] recorded | When it entered the scheduler's queue.
-- column: admitted_ns [ns] recorded | When the scheduler gave it blocks to load into.
-- column: begin_ns [ns] recorded | When a worker first took it up.
-- column: prepare_ns [ns] recorded | When a worker began to prepare descriptors: the handshake is over.
-- column: posted_ns [ns] recorded | When NIXL had all of them.
-- column: running_ns [ns] recorded | When a worker last asked and a read had not ended; NULL if all had at the first
--     time.
-- column: seen_ns [ns] recorded | When the workers knew that all reads had ended.
-- column: told_ns [ns] recorded | When the scheduler was told.
-- column: scheduled_ns [ns] recorded | When its first step with these blocks was scheduled.
-- column: nixl_start_ns [ns] recorded | When NIXL began to post, by its own telemetry; NULL if it does not tell.
-- column: nixl_end_ns [ns] recorded | When NIXL knew that the last read had ended, by its telemetry; NULL likewise.
-- column: nixl_post_ns [ns] recorded | Time that NIXL took to post, all reads together, by its telemetry.
-- column: notice_ns [ns] recorded | When the prefill engine's workers had found the notifications, on its clock.
-- column: uncertainty_ns [ns] derived | Of notice_ns against the other times; 0 on one host, NULL: unbounded.

WITH load AS (
    SELECT
        request, any_value(engine_id) AS engine_id, count(*) AS reads, count_if(NOT success)::BIGINT AS failed_reads,
        sum(descriptors)::BIGINT AS descriptors, sum(posted_descriptors)::BIGINT AS posted_descriptors,
        sum(bytes)::BIGINT AS bytes, min(begin_ns) AS begin_ns, min(prepare_ns) AS prepare_ns,
        max(posted_ns) AS posted_ns, max(running_ns) AS running_ns, max(seen_ns) AS seen_ns,
        min(wire_start_ns) AS nixl_start_ns, max(wire_start_ns + wire_ns) AS nixl_end_ns,
        sum(post_ns)::BIGINT AS nixl_post_ns
    FROM handover_read WHERE request IS NOT NULL GROUP BY request
), admitted AS (
    SELECT request, min(start_ns) AS admitted_ns
    FROM pin WHERE cause = 'async_load' AND request IN (SELECT request FROM load) GROUP BY request
), told AS (
    SELECT request, min(time_ns) AS told_ns FROM connector_news WHERE op = 'loaded' GROUP BY request
), noticed AS (
    SELECT request, max(time_ns) AS notice_ns FROM handover_notice GROUP BY request
)
SELECT
    load.request AS decode_request, load.engine_id AS decode_engine_id, h.prefill_request, h.prefill_engine_id,
    load.reads, load.failed_reads, load.descriptors, load.posted_descriptors, load.bytes,
    coalesce(r.arrival_ns, r.queued_ns) AS arrival_ns, r.queued_ns, admitted.admitted_ns, load.begin_ns,
    load.prepare_ns, load.posted_ns, load.running_ns, load.seen_ns, told.told_ns, r.scheduled_ns, load.nixl_start_ns,
    load.nixl_end_ns, load.nixl_post_ns, noticed.notice_ns, h.uncertainty_ns
FROM load
LEFT JOIN request r ON r.request = load.request
LEFT JOIN admitted ON admitted.request = load.request
LEFT JOIN told ON told.request = load.request
LEFT JOIN handover h ON h.decode_request = load.request
LEFT JOIN noticed ON noticed.request = h.prefill_request
