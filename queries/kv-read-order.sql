-- Are a request's blocks read in increasing order?
--
-- One row per worker, layer and phase, over the tiles that the trace holds (`--kv-level tile`). Reads are put in the
-- order in which their K was used, and each is compared with the next. in_program takes the reads of one program, which
-- handles a few queries of one request and one KV head, by place in the sequence. in_request takes all programs of the
-- request and head in the layer: it is lower where several programs read side by side, as in prefill or where a long
-- context is cut into segments. block_id_in_program compares the ids of the blocks instead of their places: whether the
-- order is also that of the memory depends on how the blocks were allocated, and is known for models with one KV cache
-- group. Reads of one tick (32 ns) count as ordered by place. FlashAttention 4 goes from a sequence's end to its start, so
-- its in_program is 0.
--
-- group: KV access
-- figure: KV access study (IPDPS'25), Figure 6b: blocks are read in increasing order within a request.
-- needs: gpu_program, gpu_tile
-- param: first_step INTEGER = NULL | Leave out the steps before this one.
-- param: last_step INTEGER = NULL | Leave out the steps after this one.
-- key: layer, phase, programs, reads, in_program, in_request
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

WITH program AS (
    -- One number a program and one a request's head in a layer: the shorter the keys, the faster the sorting.
    SELECT
        *, row_number() OVER (ORDER BY process_id, step, program) AS id,
        dense_rank() OVER (ORDER BY process_id, step, layer, row, head) AS head_id,
        count(*) OVER (PARTITION BY process_id, step, layer, row, head) > 1 AS shares_head
    FROM gpu_program
    WHERE ($first_step IS NULL OR step >= $first_step) AND ($last_step IS NULL OR step <= $last_step)
), listed AS (
    SELECT process_id, step, row, first_token, any_value(kernel_block) AS block FROM gpu_block_list GROUP BY ALL
), read AS (
    SELECT p.id, p.head_id, p.shares_head, t.tile, t.k_ns, l.block
    FROM gpu_tile t
    JOIN program p USING (process_id, step, program)
    LEFT JOIN listed
        l ON l.process_id = t.process_id AND l.step = t.step AND l.row = p.row
    AND l.first_token = t.tile * p.tile_tokens
), in_program AS (
    SELECT
        id, count(*) AS reads, count_if(next_tile > tile) AS increasing,
        count_if(next_block > block) AS increasing_blocks,
        count(next_block) FILTER (block IS NOT NULL) AS pairs_of_blocks
    FROM (
        SELECT id, tile, block, lead(tile) OVER by_time AS next_tile, lead(block) OVER by_time AS next_block FROM read
        WINDOW by_time AS (PARTITION BY id ORDER BY k_ns, tile)
    ) GROUP BY id
), in_request AS (
    SELECT head_id, count(*) AS reads, count_if(next_tile > tile) AS increasing
    FROM (
        SELECT head_id, tile, lead(tile) OVER (PARTITION BY head_id ORDER BY k_ns, tile) AS next_tile
        FROM read WHERE shares_head
    ) GROUP BY head_id
), head AS (
    -- A head read by one program reads in that program's order.
    SELECT
        any_value(p.process_id) AS process_id, any_value(p.step) AS step, any_value(p.layer) AS layer,
        any_value(p.row) AS row, count(*) AS programs, sum(r.reads) AS reads, sum(r.increasing) AS increasing,
        sum(r.increasing_blocks) AS increasing_blocks, sum(r.pairs_of_blocks) AS pairs_of_blocks,
        coalesce(any_value(q.increasing), sum(r.increasing)) AS increasing_of_request
    FROM program p JOIN in_program r USING (id) LEFT JOIN in_request q USING (head_id)
    GROUP BY p.head_id
)
SELECT
    h.process_id,
    layer,
    phase,
    sum(programs)::BIGINT AS programs,
    sum(reads)::BIGINT AS reads,
    sum(reads - programs)::BIGINT AS pairs_in_program,
    sum(increasing) / nullif(sum(reads - programs), 0) AS in_program,
    sum(reads - 1)::BIGINT AS pairs_in_request,
    sum(increasing_of_request) / nullif(sum(reads - 1), 0) AS in_request,
    sum(increasing_blocks) / nullif(sum(pairs_of_blocks), 0) AS block_id_in_program
FROM head h LEFT JOIN tile_request r USING (process_id, step, row)
GROUP BY h.process_id, layer, phase
ORDER BY h.process_id, layer, phase
