-- How much KV memory would other block sizes and contiguous allocators waste on the same requests?
--
-- One row per engine and allocator, averaged over the steps in which a request held KV; each step counts once. The
-- first row is the run itself (shared blocks count once). The other rows place the same requests, for as long as they
-- ran in this run, in memory of their own, without sharing. `paged` uses blocks of another size, allocated as tokens
-- come. `contiguous` reserves one piece at admission: the longest sequence the engine allows (`max_model_len`), the
-- request's final length rounded up to a power of two (`buddy`), its prompt and its output each rounded up to a power
-- of two (`output_power_of_2`), or its final length (`exact`: no allocator can know it). Reserved and not yet used
-- slots count as waste. A request still running at the end of the recording has its length at that time as its final
-- length. All is derived: nobody ran these allocators, and one that wastes more would have run fewer requests at a
-- time. External fragmentation is not modelled.
--
-- NULL, or without rows, for engines with several KV cache groups.
--
-- group: KV memory
-- figure: Kwon et al. (SOSP'23, PagedAttention), Figure 2: average share of wasted KV memory by system.
-- needs: step_schedule, step_request, engine, request
-- key: allocator, block_size_tokens, wasted_share, requests, reserved_tokens
-- column: engine_id recorded | The engine.
-- column: allocator derived | recorded, paged, contiguous_max_model_len, contiguous_buddy, contiguous_output_power_of_2 or
--     contiguous_exact.
-- column: block_size_tokens [tokens] derived | Slots a block; NULL for contiguous ones.
-- column: steps [steps] derived | Steps in the mean.
-- column: requests [requests] derived | Requests that held KV (mean).
-- column: reserved_tokens [tokens] derived | Slots allocated or reserved (mean).
-- column: stored_tokens [tokens] derived | Of them, slots that hold a token's KV (mean).
-- column: wasted_tokens [tokens] derived | The others (mean).
-- column: wasted_share [ratio] derived | wasted_tokens over reserved_tokens.
-- column: fitting_requests [requests] derived | Requests of that mean size that the pool has room for.

WITH state AS (
    SELECT
        r.engine_id, r.request, s.scheduled_ns AS time_ns, r.step, false AS ended,
        r.computed_tokens + r.scheduled_tokens AS stored
    FROM step_request r JOIN step_schedule s USING (engine_id, step)
    UNION ALL
    SELECT e.engine_id, e.request, e.time_ns, s.step, true, 0
    FROM request_event e ASOF JOIN step_schedule s ON e.engine_id = s.engine_id AND s.scheduled_ns >= e.time_ns
    WHERE e.op IN ('preempt', 'finish')
), last_step AS (
    SELECT engine_id, max(step) AS step FROM step_schedule GROUP BY engine_id
), held AS (
    SELECT
        engine_id, request, s.step, stored, ended,
        coalesce(lead(s.step) OVER life, l.step + 1) - s.step AS steps,
        (NOT ended)::INTEGER - (NOT lag(ended, 1, true) OVER life)::INTEGER AS begun
    FROM state s JOIN last_step l USING (engine_id)
    WINDOW life AS (PARTITION BY engine_id, request ORDER BY time_ns, ended)
), busy AS (
    SELECT engine_id, count(*) AS steps, avg(used_blocks) AS used_blocks
    FROM (
        SELECT
            s.engine_id, s.used_blocks, sum(coalesce(c.begun, 0)) OVER (PARTITION BY s.engine_id ORDER BY s.step) AS n
        FROM step_schedule s
        LEFT JOIN (SELECT engine_id, step, sum(begun) AS begun FROM held GROUP BY ALL) c USING (engine_id, step)
    ) WHERE n > 0 GROUP BY engine_id
), kept AS (
    SELECT h.* FROM held h JOIN engine e USING (engine_id)
    WHERE NOT ended AND steps > 0 AND coalesce(e.kv_groups, 1) = 1
), total AS (
    SELECT engine_id, sum(steps) AS requests, sum(steps * stored) AS stored FROM kept GROUP BY engine_id
), length AS (
    SELECT engine_id, stored, sum(steps) AS steps FROM kept GROUP BY ALL
), life AS (
    SELECT
        k.engine_id, sum(k.steps) AS steps, any_value(q.prompt_tokens) AS prompt,
        greatest(any_value(q.prompt_tokens + coalesce(q.output_tokens, 0)), max(stored)) AS final
    FROM kept k JOIN request q USING (request) GROUP BY k.engine_id, request
), size AS (
    SELECT DISTINCT engine_id, unnest([block_size_tokens, 8, 16, 32, 64, 128, 256]) AS block_size_tokens FROM engine
), allocator AS (
    SELECT
        b.engine_id,
        'recorded' AS allocator,
        e.block_size_tokens,
        b.used_blocks * e.block_size_tokens * b.steps AS slots,
        sum(l.steps * (ceil(l.stored / e.block_size_tokens) * e.block_size_tokens - l.stored)) AS wasted
    FROM busy b JOIN engine e USING (engine_id) JOIN length l USING (engine_id)
    GROUP BY ALL
    UNION ALL
    SELECT
        engine_id, 'paged', block_size_tokens, sum(steps * ceil(stored / block_size_tokens) * block_size_tokens), NULL
    FROM length JOIN size USING (engine_id) GROUP BY ALL
    UNION ALL
    SELECT
        engine_id, unnest([
            'contiguous_max_model_len', 'contiguous_buddy', 'contiguous_output_power_of_2',
            'contiguous_exact'
        ]), NULL, unnest([longest, buddy, power_of_2, exact
        ]), NULL
    FROM (
        SELECT
            engine_id, sum(steps * max_model_len) AS longest,
            sum(steps * 2 ** ceil(log2(final))) AS buddy,
            sum(steps * (prompt + CASE WHEN final > prompt THEN 2 ** ceil(log2(final - prompt)) ELSE 0 END))
                AS power_of_2,
            sum(steps * final) AS exact
        FROM life JOIN engine USING (engine_id) GROUP BY engine_id
    )
), mean AS (
    SELECT
        a.engine_id, allocator, a.block_size_tokens, b.steps, t.requests / b.steps AS requests,
        slots / b.steps AS reserved_tokens,
        coalesce(wasted, slots - t.stored) / b.steps AS wasted_tokens,
        e.blocks * e.block_size_tokens AS pool_tokens
    FROM allocator a JOIN busy b USING (engine_id) JOIN total t USING (engine_id) JOIN engine e USING (engine_id)
)
SELECT
    engine_id,
    allocator,
    block_size_tokens,
    steps,
    requests,
    reserved_tokens,
    reserved_tokens - wasted_tokens AS stored_tokens,
    wasted_tokens,
    wasted_tokens / reserved_tokens AS wasted_share,
    pool_tokens / (reserved_tokens / requests) AS fitting_requests
FROM mean
WHERE reserved_tokens > 0
ORDER BY engine_id, allocator <> 'recorded', allocator LIKE 'contiguous%', block_size_tokens, reserved_tokens DESC
