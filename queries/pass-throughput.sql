-- How many tokens a second does a forward pass compute, by phase and batch, and how much of the token budget does it use?
--
-- One row per step with tokens. tokens_per_s is over the wall time that was its own (view step_time). An imported log also has the
-- rate that vLLM itself reported over its own interval, which includes the time between steps. Without synchronisation,
-- passes that return no token end before the GPU does: of a chunked prefill, trust only the whole.
--
-- group: Scheduling
-- figure: IPDPS'25 study of KV access, Figure 4a: throughput of a forward pass; its fill of the budget by batching.
-- needs: step_schedule, step_update
-- param: engine INTEGER = NULL | Only this engine (`engine_id`); all engines if NULL.
-- param: with_warmup BOOLEAN = false | Also the steps that an imported log calls its warm-up.
-- key: step, phase, running, batch_tokens, fill, own_ms, tokens_per_s
-- column: engine_id recorded | The engine.
-- column: name recorded | Name of an imported run, or the model.
-- column: batching recorded | default, chunked or mixed; of a recording: chunked or default, as the engine is set.
-- column: step recorded | Scheduler step.
-- column: pass derived | The step among those shown of its engine, from 1.
-- column: phase derived | prefill, decode or mixed, by what the tokens are for (recomputation is prefill); NULL if unknown.
-- column: running [requests] recorded | Requests running after scheduling.
-- column: batch_tokens [tokens] recorded | Tokens of the pass.
-- column: prefill_tokens [tokens] derived | Of them, of prompts or computed again.
-- column: decode_tokens [tokens] derived | Of them, of requests that generate.
-- column: budget_tokens [tokens] recorded | Most tokens a pass may have.
-- column: fill [ratio] derived | batch_tokens over budget_tokens.
-- column: own_ms [ms] derived | Wall time that was its own.
-- column: tokens_per_s [tokens/s] derived | batch_tokens over that time.
-- column: reported_tokens_per_s [tokens/s] recorded | Prompt and output tokens a second, as vLLM's log has it.

WITH pass AS (
    SELECT
        s.*,
        t.own_ns,
        s.prefill_tokens + s.chunked_prefill_tokens + s.resumed_tokens AS computed_tokens,
        r.tokens_per_s
    FROM step s
    JOIN step_time t USING (engine_id, step)
    LEFT JOIN engine_sample r USING (engine_id, step)
    WHERE
        ($engine IS NULL OR s.engine_id = $engine)
        AND ($with_warmup OR r.part IS DISTINCT FROM 'warmup')
)
SELECT
    p.engine_id,
    coalesce(n.name, e.model) AS name,
    coalesce(n.batching, CASE WHEN e.chunked_prefill THEN 'chunked' WHEN NOT e.chunked_prefill THEN 'default' END)
        AS batching,
    p.step,
    row_number() OVER (PARTITION BY p.engine_id ORDER BY p.step) AS pass,
    CASE
        WHEN p.decode_tokens = 0 THEN 'prefill' WHEN p.computed_tokens = 0 THEN 'decode'
        WHEN p.decode_tokens > 0 THEN 'mixed'
    END AS phase,
    p.running,
    p.scheduled_tokens AS batch_tokens,
    p.computed_tokens AS prefill_tokens,
    p.decode_tokens,
    p.budget_tokens,
    p.scheduled_tokens / nullif(p.budget_tokens, 0) AS fill,
    p.own_ns / 1e6 AS own_ms,
    p.scheduled_tokens * 1e9 / nullif(p.own_ns, 0) AS tokens_per_s,
    p.tokens_per_s AS reported_tokens_per_s
FROM pass p LEFT JOIN engine_source n USING (engine_id) LEFT JOIN engine e USING (engine_id)
ORDER BY p.engine_id, p.step
