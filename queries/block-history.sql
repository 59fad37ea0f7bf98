-- What happened to a block: who allocated, hit, cached, evicted and freed it?
--
-- One row per event, in the block manager's order.
--
-- group: KV memory
-- needs: block_event
-- param: block INTEGER = NULL | Only this block (`block_id`).
-- key: time_ns, block_id, op, request, session, ref_count
-- column: engine_id recorded | The engine.
-- column: time_ns [ns] recorded | When, UNIX time.
-- column: step recorded | The scheduler's step.
-- column: block_id recorded | The block.
-- column: op recorded | What happened.
-- column: request recorded | Key of table `request`: whose call it was; of an eviction, who took the block.
-- column: session recorded | That request's session tag.
-- column: ref_count recorded | References held after it.
-- column: block_hash recorded | With cache and evict: the content's hash.

SELECT b.engine_id, b.time_ns, b.step, b.block_id, b.op, b.request, r.session, b.ref_count, b.block_hash
FROM block_event b LEFT JOIN request r ON r.request = b.request
WHERE b.pool = 0 AND ($block IS NULL OR b.block_id = $block)
ORDER BY b.engine_id, b.time_ns, b.rowid
