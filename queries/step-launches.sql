-- What does launching a step's forward pass take the host, with CUDA graphs and without?
--
-- One row per engine, phase and graph mode. vLLM launches a pass kernel by kernel (eager), as graphs between attention layers
-- (piecewise) or as one graph (full). Unless told otherwise it has graphs for at most twice max_num_seqs tokens, and for at most 512
-- (1,024 on Blackwell), so a step with prefill that is just above launches more slowly than one below. On a CPU a pass is computed while
-- it is launched.
--
-- group: Scheduling
-- needs: forward, step_schedule
-- words: host, cuda graph, eager, slow, ttft, launch, max_num_seqs
-- key: phase, graph_mode, steps, to_tokens, launch_ms, idle_launch_ms, total_ms
-- param: small_tokens INTEGER = 512 | Tokens of passes that graphs could be had for.
-- param: idle_ms DOUBLE = 20 | An engine was idle if a step began so long after the results of the step before it.
-- column: engine_id recorded | The engine.
-- column: phase derived | prefill: passes with tokens of prompts, or computed again. decode: the others.
-- column: graph_mode recorded | eager, piecewise or full.
-- column: steps [steps] derived | Their steps.
-- column: from_tokens [tokens] derived | Tokens of the smallest of these passes.
-- column: to_tokens [tokens] derived | Tokens of the largest.
-- column: launch_ms [ms] derived | Median time that the slowest worker took to launch such a pass of an engine that was not idle.
-- column: idle_steps [steps] derived | Steps of an engine that was idle before.
-- column: idle_launch_ms [ms] derived | Median of the time that their launches took.
-- column: total_ms [ms] derived | Time of all these launches.
-- column: share [ratio] derived | Of the time that the engine's steps with tokens took, idle time between them left out.
-- column: small_steps [steps] derived | Steps whose passes have at most small_tokens tokens.
-- column: small_ms [ms] derived | Time of their launches.

WITH worker_pass AS (
    SELECT
        engine_id,
        step,
        process_id,
        min(graph_mode) AS graph_mode,
        max(tokens) AS tokens,
        sum(end_ns - start_ns) AS launch_ns
    FROM forward
    GROUP BY engine_id, step, process_id
), pass AS (
    SELECT engine_id, step, min(graph_mode) AS graph_mode, max(tokens) AS tokens, max(launch_ns) AS launch_ns
    FROM worker_pass
    GROUP BY engine_id, step
), begun AS (
    SELECT
        engine_id,
        step,
        scheduled_tokens > decode_tokens AS prefills,
        start_ns - lag(update_ns) OVER (PARTITION BY engine_id ORDER BY step) AS since_ns,
        sum(CASE WHEN scheduled_tokens > 0 THEN interval_ns END) OVER (PARTITION BY engine_id) AS steps_ns
    FROM step
), timed AS (
    SELECT
        p.engine_id,
        CASE WHEN b.prefills THEN 'prefill' ELSE 'decode' END AS phase,
        p.graph_mode,
        p.tokens,
        p.launch_ns,
        coalesce(b.since_ns >= $idle_ms * 1e6, true) AS was_idle,
        b.steps_ns
    FROM pass p
    JOIN begun b ON b.engine_id = p.engine_id AND b.step = p.step
    WHERE p.tokens > 0
)
SELECT
    engine_id,
    phase,
    graph_mode,
    count(*) AS steps,
    min(tokens) AS from_tokens,
    max(tokens) AS to_tokens,
    median(launch_ns) FILTER (WHERE NOT was_idle) / 1e6 AS launch_ms,
    count(*) FILTER (WHERE was_idle) AS idle_steps,
    median(launch_ns) FILTER (WHERE was_idle) / 1e6 AS idle_launch_ms,
    sum(launch_ns) / 1e6 AS total_ms,
    sum(launch_ns) / nullif(max(steps_ns), 0) AS share,
    count(*) FILTER (WHERE tokens <= $small_tokens) AS small_steps,
    sum(CASE WHEN tokens <= $small_tokens THEN launch_ns ELSE 0 END) / 1e6 AS small_ms
FROM timed
GROUP BY engine_id, phase, graph_mode
ORDER BY engine_id, phase, graph_mode
