-- This run, to tell it from others when answers of several traces are put together: one row.
--
-- Engines that differ (data parallel, say) give NULL where one number would be wrong, and texts joined by commas.
--
-- needs: connector, engine, request, run
-- column: vllm_version recorded | vLLM's version.
-- column: gpu recorded | The workers' GPU; NULL on a CPU, or if the recording does not tell.
-- column: model recorded | Model name or path.
-- column: engines derived | Engines; 0 if the trace is not of a recording.
-- column: scheduler recorded | The scheduler's class; NULL if it was not recorded.
-- column: policy derived | vLLM's scheduling policy; the class's name where the scheduler is not vLLM's own.
-- column: blocks [blocks] derived | GPU blocks that requests can use, over all engines.
-- column: block_size_tokens [tokens] recorded | Tokens a block.
-- column: capacity_tokens [tokens] derived | The KV budget: tokens that fit into the GPU's blocks if every KV cache
--     group keeps all of them.
-- column: max_num_seqs [requests] recorded | Most running requests of an engine.
-- column: max_num_batched_tokens [tokens] recorded | Most tokens a step of an engine.
-- column: max_model_len recorded | Longest sequence.
-- column: prefix_caching recorded | Prefix caching is on.
-- column: chunked_prefill recorded | Chunked prefill is on.
-- column: async_scheduling recorded | Steps are scheduled ahead of their results.
-- column: connector recorded | KV connector; NULL without one.
-- column: host_bytes [bytes] derived | KV that the connector's tier in host memory holds, of one rank's, over all
--     engines; NULL if it does not tell.
-- column: cache_mode derived | off, prefix, or either with `+` and the connector.
-- column: tp_size recorded | Tensor-parallel size.
-- column: pp_size recorded | Pipeline-parallel size.
-- column: dp_size recorded | Data-parallel size.
-- column: requests [requests] derived | Requests that arrived.
-- column: jobs derived | Different session tags among them.
-- column: first_arrival_ns [ns] derived | The first request's arrival.
-- column: last_arrival_ns [ns] derived | The last request's arrival.
-- column: requests_per_s [requests/s] derived | Measured arrival rate: requests after the first over the time from the
--     first to the last arrival.
-- column: jobs_per_s [jobs/s] derived | The same of jobs, by their first requests.

WITH host AS (
    SELECT sum(c.capacity_blocks * coalesce(c.blocks_per_chunk, 1) * e.block_bytes)::BIGINT AS bytes
    FROM connector c JOIN engine e ON e.engine_id = c.process_id
    WHERE c.role = 'scheduler' AND c.tier = 'cpu'
), engines AS (
    SELECT
        count(*) AS engines,
        string_agg(DISTINCT model, ', ' ORDER BY model) AS model,
        string_agg(DISTINCT scheduler, ', ' ORDER BY scheduler) AS scheduler,
        string_agg(DISTINCT policy_name, ', ' ORDER BY policy_name) AS policy,
        sum(blocks)::BIGINT AS blocks,
        CASE WHEN min(block_size_tokens) = max(block_size_tokens) THEN min(block_size_tokens) END
            AS block_size_tokens,
        sum(blocks::BIGINT * block_size_tokens // greatest(coalesce(kv_groups, 1), 1))::BIGINT
            AS capacity_tokens,
        CASE WHEN min(max_num_seqs) = max(max_num_seqs) THEN min(max_num_seqs) END AS max_num_seqs,
        CASE WHEN min(max_num_batched_tokens) = max(max_num_batched_tokens) THEN min(max_num_batched_tokens) END
            AS max_num_batched_tokens,
        CASE WHEN min(max_model_len) = max(max_model_len) THEN min(max_model_len) END
            AS max_model_len,
        CASE WHEN bool_and(prefix_caching) = bool_or(prefix_caching) THEN bool_and(prefix_caching) END
            AS prefix_caching,
        CASE WHEN bool_and(chunked_prefill) = bool_or(chunked_prefill) THEN bool_and(chunked_prefill) END
            AS chunked_prefill,
        CASE WHEN bool_and(async_scheduling) = bool_or(async_scheduling) THEN bool_and(async_scheduling) END
            AS async_scheduling,
        string_agg(DISTINCT connector, ', ' ORDER BY connector) AS connector,
        max(tp_size) AS tp_size, max(pp_size) AS pp_size, max(dp_size) AS dp_size
    FROM (
        SELECT
            *, CASE
                WHEN scheduler IS NULL OR scheduler LIKE 'vllm.%' THEN policy
                ELSE split_part(scheduler, '.', -1)
            END AS policy_name
        FROM engine
    )
), arrival AS (
    SELECT session, coalesce(arrival_ns, queued_ns) AS ns FROM request
), arrivals AS (
    SELECT
        count(*) AS requests, min(ns) AS first_ns, max(ns) AS last_ns,
        (count(ns) - 1) * 1e9 / nullif(max(ns) - min(ns), 0) AS per_s
    FROM arrival
), jobs AS (
    SELECT count(*) AS jobs, (count(ns) - 1) * 1e9 / nullif(max(ns) - min(ns), 0) AS per_s
    FROM (SELECT min(ns) AS ns FROM arrival WHERE session IS NOT NULL GROUP BY session)
)
SELECT
    (SELECT any_value(value) FROM run WHERE key = 'vllm_version') AS vllm_version,
    (SELECT any_value(value) FROM run WHERE key = 'gpu') AS gpu,
    e.model, e.engines, e.scheduler, e.policy, e.blocks, e.block_size_tokens, e.capacity_tokens, e.max_num_seqs,
    e.max_num_batched_tokens, e.max_model_len, e.prefix_caching, e.chunked_prefill, e.async_scheduling,
    e.connector, host.bytes AS host_bytes,
    CASE
        WHEN e.prefix_caching IS NOT NULL THEN
            CASE WHEN e.prefix_caching THEN 'prefix' ELSE 'off' END || coalesce('+' || e.connector, '')
    END
        AS cache_mode,
    e.tp_size, e.pp_size, e.dp_size, a.requests, j.jobs, a.first_ns AS first_arrival_ns,
    a.last_ns AS last_arrival_ns, a.per_s AS requests_per_s, j.per_s AS jobs_per_s
FROM engines e, host, arrivals a, jobs j
