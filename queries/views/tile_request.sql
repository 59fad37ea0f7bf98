-- A row of the batch in a step with tiles: whose it was, and what its tokens were for.
--
-- batch_row, carried on to the steps in which the batch did not change.
--
-- needs: batch_row, step_request, tile_step
-- column: process_id recorded | The worker (`process.process_id`).
-- column: engine_id recorded | The engine that scheduled the step.
-- column: step recorded | Scheduler step.
-- column: row derived | Row of the batch.
-- column: request derived | The request (key of table `request`).
-- column: phase recorded | Its phase in the step; NULL if the step was not recorded.

WITH batch AS (
    SELECT t.process_id, t.engine_id, t.step, r.since
    FROM tile_step t ASOF JOIN (SELECT DISTINCT process_id, step AS since FROM batch_row) r
        ON t.process_id = r.process_id AND t.step >= r.since
)
SELECT b.process_id, b.engine_id, b.step, r.row, r.request, s.phase
FROM batch b
JOIN batch_row r ON r.process_id = b.process_id AND r.step = b.since
LEFT JOIN step_request s ON s.engine_id = b.engine_id AND s.step = b.step AND s.request = r.request
