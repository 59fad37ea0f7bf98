-- Which tools did jobs call, how long did they take, and how much of a job's KV was still cached afterwards?
--
-- One row per workload and tool, the most used first. A turn ends with a call; what the job's next turn got from a
-- cache tells what the wait cost. Of that turn, the prompt up to the end of the turn before could have been cached.
--
-- group: Requests and jobs
-- needs: client_request
-- key: tool, calls, share, median_ms, longest_ms, next_cached_share, next_ttft_ms
-- column: phase recorded | Which of the workloads of the run, from 0.
-- column: workload recorded | Its name.
-- column: tool recorded | The tool.
-- column: calls [requests] derived | Turns that ended with a call of it.
-- column: share [ratio] derived | Of all calls of the workload.
-- column: mean_ms [ms] derived | Mean time of a call.
-- column: median_ms [ms] derived | Median time of a call.
-- column: longest_ms [ms] derived | Longest call.
-- column: next_turns [requests] derived | Calls after which a turn came whose cached tokens are known.
-- column: next_cached_share [ratio] derived | Of those turns: cached tokens over the tokens of the turn before, prompt and
--     output.
-- column: next_ttft_ms [ms] derived | Of those turns: mean time to the first token.

WITH turn AS (
    SELECT
        phase, workload, tool, tool_ms, prompt_tokens + output_tokens AS known_tokens,
        lead(cached_tokens) OVER job AS next_cached_tokens,
        (lead(first_token_ns) OVER job - lead(send_ns) OVER job) / 1e6 AS next_ttft_ms
    FROM client_request
    WINDOW job AS (PARTITION BY phase, session ORDER BY turn, send_ns)
)
SELECT
    phase,
    workload,
    tool,
    count(*) AS calls,
    count(*) / sum(count(*)) OVER (PARTITION BY phase, workload) AS share,
    avg(tool_ms) AS mean_ms,
    median(tool_ms) AS median_ms,
    max(tool_ms) AS longest_ms,
    count(next_cached_tokens) AS next_turns,
    sum(next_cached_tokens) / sum(known_tokens) FILTER (next_cached_tokens IS NOT NULL) AS next_cached_share,
    avg(next_ttft_ms) FILTER (next_cached_tokens IS NOT NULL) AS next_ttft_ms
FROM turn
WHERE tool IS NOT NULL
GROUP BY phase, workload, tool
ORDER BY phase, workload, calls DESC, tool
