-- A transfer of KV between two tiers by one worker.
--
-- It is transfer_submit joined with transfer_end.
--
-- needs: transfer_block, transfer_end, transfer_submit
-- column: process_id recorded | The process that copied (`process.process_id`).
-- column: engine_id recorded | The engine.
-- column: transfer recorded | Key within the engine; each of its workers has a row.
-- column: connector recorded | The connector's class.
-- column: direction recorded | store: away from the GPU's side; load: towards it.
-- column: from_tier recorded | Where the KV was.
-- column: to_tier recorded | Where it was copied to.
-- column: bytes [bytes] recorded | Bytes on this worker; NULL if the connector does not tell.
-- column: blocks [blocks] recorded | GPU blocks it covered (between other tiers: their blocks).
-- column: requests [requests] derived | Different requests it was for; NULL if the connector does not keep that.
-- column: step recorded | The step in which it was submitted.
-- column: submitted_ns [ns] recorded | When it was handed to what copies it.
-- column: started_ns [ns] recorded | When work on it began on the host; NULL if that cannot be seen.
-- column: finished_ns [ns] recorded | When the worker knew that it had ended; NULL if the recording ended before.
-- column: device_ns [ns] recorded | Time it took on the GPU, by CUDA events around the copy.
-- column: reported_ns [ns] recorded | Time it took as the connector itself reports.
-- column: success recorded | It succeeded; NULL while it is not known.

WITH asked AS (
    SELECT engine_id, transfer, nullif(count(DISTINCT request), 0) AS requests
    FROM transfer_block GROUP BY engine_id, transfer
), ended AS (
    SELECT DISTINCT ON (process_id, transfer) * FROM transfer_end ORDER BY process_id, transfer, finished_ns
)
SELECT
    s.process_id, s.engine_id, s.transfer, s.connector, s.direction, s.from_tier, s.to_tier,
    coalesce(e.bytes, s.bytes) AS bytes, s.blocks, asked.requests, s.step, s.submitted_ns, e.started_ns,
    e.finished_ns, e.device_ns, e.reported_ns, e.success
FROM transfer_submit s
LEFT JOIN ended e USING (process_id, transfer)
LEFT JOIN asked ON asked.engine_id = s.engine_id AND asked.transfer = s.transfer
