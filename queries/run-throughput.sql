-- How fast did the run serve, with what limits and what block size?
--
-- One row per engine: its settings, then what it achieved from its first step with tokens to the end of its last one.
-- Put the rows of several runs together (`kvtrace compare`, or a union of their answers) to plot throughput by
-- max_num_seqs and block size. Idle time of the engine counts too; busy_share is the share of the time that was not
-- idle.
--
-- group: Run
-- figure: Throughput by the most running requests and by block size, as in PagedAttention exercises.
-- needs: step_schedule, step_update, engine
-- param: skip_steps INTEGER = 0 | Leave out each engine's first steps up to this number, e.g. its warm-up.
-- key: max_num_seqs, blocks, requests_per_s, output_tokens_per_s, mean_step_ms, mean_used_share
-- column: engine_id recorded | The engine.
-- column: model recorded | Model name or path.
-- column: max_num_seqs [requests] recorded | Most running requests.
-- column: block_size_tokens [tokens] recorded | Tokens a block.
-- column: blocks [blocks] recorded | Blocks that requests can use.
-- column: max_num_batched_tokens [tokens] recorded | Most tokens a step.
-- column: policy recorded | Scheduling policy.
-- column: prefix_caching recorded | Prefix caching is on.
-- column: steps [steps] derived | Steps with tokens.
-- column: duration_s [s] derived | From the start of the first to the end of the last.
-- column: busy_share [ratio] derived | Share of it that steps with tokens took.
-- column: finished_requests [requests] derived | Requests that ended in them.
-- column: requests_per_s [requests/s] derived | Ended requests per second.
-- column: output_tokens [tokens] derived | Tokens the model returned.
-- column: output_tokens_per_s [tokens/s] derived | Output tokens per second.
-- column: computed_tokens [tokens] derived | Tokens computed, prompts and recomputation included.
-- column: computed_tokens_per_s [tokens/s] derived | Computed tokens per second.
-- column: mean_step_ms [ms] derived | Mean wall time a step added.
-- column: mean_batch_requests [requests] derived | Mean requests a step.
-- column: max_batch_requests [requests] derived | Most requests of a step.
-- column: mean_used_share [ratio] derived | Mean share of the pool's blocks in use.
-- column: preemptions derived | Requests preempted.

WITH run AS (
    SELECT
        engine_id, count(*) AS steps, (max(end_ns) - min(start_ns)) / 1e9 AS duration_s,
        sum(interval_ns) / 1e9 AS busy_s, sum(finished_requests)::BIGINT AS finished_requests,
        sum(output_tokens)::BIGINT AS output_tokens, sum(scheduled_tokens)::BIGINT AS computed_tokens,
        avg(interval_ns) / 1e6 AS mean_step_ms, avg(scheduled_requests) AS mean_batch_requests,
        max(scheduled_requests)::BIGINT AS max_batch_requests,
        avg(used_blocks / nullif(used_blocks + free_blocks, 0)) AS mean_used_share
    FROM step WHERE scheduled_tokens > 0 AND end_ns IS NOT NULL AND step > $skip_steps
    GROUP BY engine_id
), preempted AS (
    SELECT engine_id, sum(preempted_requests)::BIGINT AS preemptions
    FROM step_schedule WHERE step > $skip_steps GROUP BY engine_id
)
SELECT
    engine_id,
    e.model,
    e.max_num_seqs,
    e.block_size_tokens,
    e.blocks,
    e.max_num_batched_tokens,
    e.policy,
    e.prefix_caching,
    steps,
    duration_s,
    busy_s / duration_s AS busy_share,
    finished_requests,
    finished_requests / duration_s AS requests_per_s,
    output_tokens,
    output_tokens / duration_s AS output_tokens_per_s,
    computed_tokens,
    computed_tokens / duration_s AS computed_tokens_per_s,
    mean_step_ms,
    mean_batch_requests,
    max_batch_requests,
    mean_used_share,
    preemptions
FROM run JOIN engine e USING (engine_id) JOIN preempted USING (engine_id)
ORDER BY engine_id
