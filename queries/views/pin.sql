-- An interval in which a block was held by something else than a running request.
--
-- It is pin_start joined with pin_end.
--
-- needs: pin_end, pin_start
-- column: engine_id recorded | The engine.
-- column: pin recorded | Key within the engine; blocks pinned together share it.
-- column: block_id recorded | The block.
-- column: cause recorded | By what.
-- column: request recorded | The request whose KV it is; NULL if the connector does not keep that.
-- column: start_ns [ns] recorded | From when.
-- column: end_ns [ns] recorded | To when; NULL if it was still held when the recording ended.
-- column: requested_ttl_ns [ns] recorded | With ttl: the time asked for.
-- column: end_reason recorded | Why it ended.

SELECT
    s.engine_id, s.pin, s.block_id, s.cause, s.request, s.time_ns AS start_ns, e.time_ns AS end_ns,
    s.requested_ttl_ns, e.reason AS end_reason
FROM pin_start s LEFT JOIN pin_end e
    ON s.engine_id = e.engine_id AND s.pin = e.pin AND s.block_id = e.block_id
