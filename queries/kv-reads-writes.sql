-- Who writes KV and who reads it: prefill or decode?
--
-- One row per engine and phase. A request's share of a step writes the KV of its scheduled tokens and reads that of all
-- tokens up to them, in each layer. Counted from the scheduler's records, so it needs no GPU.
--
-- group: KV access
-- figure: KV access study (IPDPS'25): KV is written in prefill and read in decode.
-- needs: step_request, engine
-- key: phase, written_tokens, write_share, read_tokens, read_share, reads_per_write
-- column: engine_id recorded | The engine.
-- column: phase recorded | What the tokens were scheduled for.
-- column: shares recorded | Requests' shares of steps.
-- column: written_tokens [tokens] recorded | Tokens whose KV was written.
-- column: write_share [ratio] derived | Of all tokens written.
-- column: read_tokens [tokens] derived | Tokens whose KV was read.
-- column: read_blocks [blocks] derived | Blocks they lie in.
-- column: read_share [ratio] derived | Of all blocks read.
-- column: reads_per_write [ratio] derived | Tokens read for each one written.

WITH share AS (
    SELECT
        s.engine_id, s.phase, s.scheduled_tokens AS written, s.computed_tokens + s.scheduled_tokens AS read,
        ceil((s.computed_tokens + s.scheduled_tokens) / e.block_size_tokens)::BIGINT AS blocks
    FROM step_request s JOIN engine e USING (engine_id)
), phase AS (
    SELECT
        engine_id, phase, count(*) AS shares, sum(written)::BIGINT AS written_tokens,
        sum(read)::BIGINT AS read_tokens, sum(blocks)::BIGINT AS read_blocks
    FROM share GROUP BY engine_id, phase
)
SELECT
    engine_id,
    phase,
    shares,
    written_tokens,
    written_tokens / sum(written_tokens) OVER engines AS write_share,
    read_tokens,
    read_blocks,
    read_blocks / sum(read_blocks) OVER engines AS read_share,
    read_tokens / nullif(written_tokens, 0) AS reads_per_write
FROM phase
WINDOW engines AS (PARTITION BY engine_id)
ORDER BY engine_id, phase
