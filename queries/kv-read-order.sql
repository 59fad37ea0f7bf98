-- Are a request's blocks read in increasing order?
--
-- One row a worker, layer and phase, over the tiles that the trace holds (`--kv-level tile`). Reads are put in the order in
-- which their K was used, and each is compared with the next. in_program takes the reads of one program, which handles a
-- few queries of one request and one KV head, by place in the sequence. in_request takes all programs of the request and
-- head in the layer: it is lower where several programs read side by side, as in prefill or where a long context is cut
-- into segments. block_id_in_program compares the ids of the blocks instead of their places: whether the order is also that
-- of the memory depends on how the blocks were allocated, and is known for models with one KV cache group. Reads of one
-- tick (32 ns) count as ordered by place.
--
-- figure: KV access study (IPDPS'25), Figure 6b: blocks are read in increasing order within a request.
-- needs: gpu_program, gpu_tile
-- param: first_step INTEGER = NULL | Leave out the steps before this one.
-- param: last_step INTEGER = NULL | Leave out the steps after this one.
-- column: process_id recorded | The worker.
-- column: layer recorded | Layer, as in kv_layer.
-- column: phase recorded | What the request's tokens were for.
-- column: programs recorded | Attention programs.
-- column: reads recorded | Tiles they read.
-- column: pairs_in_program derived | Reads with a next one in their program.
-- column: in_program [ratio] derived | Of those, pairs whose place increases.
-- column: pairs_in_request derived | Reads with a next one of their request and head.
-- column: in_request [ratio] derived | Of those, pairs whose place increases.
-- column: block_id_in_program [ratio] derived | Of the pairs in a program with known blocks, those whose id increases.

WITH listed AS (
    SELECT process_id, step, row, first_token, any_value(kernel_block) AS block
    FROM gpu_block_list
    WHERE ($first_step IS NULL OR step >= $first_step) AND ($last_step IS NULL OR step <= $last_step)
    GROUP BY ALL
), read AS (
    SELECT t.process_id, t.step, p.layer, p.head, p.row, t.program, t.tile, t.k_ns, l.block
    FROM gpu_tile t
    JOIN gpu_program p USING (process_id, step, program)
    LEFT JOIN listed l ON l.process_id = t.process_id AND l.step = t.step AND l.row = p.row
        AND l.first_token = t.tile * p.tile_tokens
    WHERE ($first_step IS NULL OR t.step >= $first_step) AND ($last_step IS NULL OR t.step <= $last_step)
), pair AS (
    SELECT process_id, step, layer, row, tile, block,
        lead(tile) OVER in_program AS next_tile,
        lead(block) OVER in_program AS next_block,
        lead(tile) OVER in_request AS next_tile_of_request
    FROM read
    WINDOW in_program AS (PARTITION BY process_id, step, program ORDER BY k_ns, tile),
        in_request AS (PARTITION BY process_id, step, layer, row, head ORDER BY k_ns, tile)
), counted AS (
    -- A program of n reads has n - 1 pairs.
    SELECT process_id, step, layer, row, count_if(next_tile IS NULL) AS programs, count(*) AS reads,
        count(next_tile) AS pairs, count_if(next_tile > tile) AS increasing,
        count(next_tile_of_request) AS pairs_of_request, count_if(next_tile_of_request > tile) AS increasing_of_request,
        count_if(next_block > block) AS increasing_blocks,
        count(next_block) FILTER (block IS NOT NULL) AS pairs_of_blocks
    FROM pair GROUP BY ALL
)
SELECT
    c.process_id,
    layer,
    phase,
    sum(programs)::BIGINT AS programs,
    sum(reads)::BIGINT AS reads,
    sum(pairs)::BIGINT AS pairs_in_program,
    sum(increasing) / nullif(sum(pairs), 0) AS in_program,
    sum(pairs_of_request)::BIGINT AS pairs_in_request,
    sum(increasing_of_request) / nullif(sum(pairs_of_request), 0) AS in_request,
    sum(increasing_blocks) / nullif(sum(pairs_of_blocks), 0) AS block_id_in_program
FROM counted c LEFT JOIN tile_request r USING (process_id, step, row)
GROUP BY c.process_id, layer, phase
ORDER BY c.process_id, layer, phase
