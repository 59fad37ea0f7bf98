"""A trace with some of everything that an export draws."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from kvtrace.ingest.schema.trace import TRACE_VERSION, create_schema

EPOCH_NS = 1_795_241_141_776_964_443
STEPS = 200
HOSTILE = "</script><script>alert(1)</script>\u202e\u0000\"'\n\x1b[31m" + "x" * 10_000

_TRACE = """
INSERT INTO run VALUES ('trace_version', '{version}'), ('started_ns', '{epoch}'), ('pid', '41'),
    ('kvtrace_version', '0.1.0'), ('vllm_version', '0.32.0'), ('command', '["vllm", "serve"]');
INSERT INTO process (process_id, roles, host, pid) VALUES
    (1, 'engine', 'one', 41), (2, 'worker', 'one', 42), (3, 'worker', 'two', 42);
INSERT INTO engine (engine_id, model, blocks, block_size_tokens) VALUES (1, 'tiny', 100, 16);

-- Steps overlap, as under async scheduling: each starts 1000 ns after the one before and takes 1500 ns.
INSERT INTO step_schedule BY NAME
    SELECT 1 AS engine_id, {epoch} + i * 1000 AS start_ns, {epoch} + i * 1000 + 100 AS scheduled_ns, i AS step,
        2 AS running, i % 3 AS waiting, 0 AS prefill_requests, 0 AS prefill_tokens, 0 AS chunked_prefill_requests,
        0 AS chunked_prefill_tokens, 2 AS decode_requests, 2 AS decode_tokens, 0 AS resumed_requests,
        0 AS resumed_tokens, 64 AS budget_tokens, 62 AS budget_left_tokens, 100 - i % 50 AS free_blocks,
        i % 50 AS used_blocks, i % 50 AS cached_blocks, 0 AS preempted_requests, 'none' AS admission_limit
    FROM range(1, {steps} + 1) s(i);
INSERT INTO step_update BY NAME
    SELECT 1 AS engine_id, start_ns + 1400 AS update_ns, start_ns + 1500 AS end_ns, step, 2 AS output_tokens
    FROM step_schedule WHERE step < {steps};
INSERT INTO forward BY NAME
    SELECT 2 AS process_id, start_ns + 150 AS start_ns, start_ns + 1100 AS end_ns, 1 AS engine_id, step, 2 AS tokens
    FROM step_schedule;

-- Request r runs in 15 steps from 10 r - 9 on; number 3 is preempted in the sixth of them and resumed in the tenth.
CREATE TEMP TABLE share AS
    SELECT r, i, s.* FROM range(1, 20) q(r), range(15) p(i), step_schedule s
    WHERE s.step = 10 * r - 9 + i AND NOT (r = 3 AND i IN (5, 6, 7, 8));
INSERT INTO step_request BY NAME
    SELECT 1 AS engine_id, step, r AS request, 1 AS scheduled_tokens, i AS computed_tokens, 0 AS new_blocks,
        CASE WHEN i = 0 THEN 'prefill' WHEN r = 3 AND i IN (9, 10) THEN 'resumed' ELSE 'decode' END AS phase
    FROM share ORDER BY step, r;
INSERT INTO request_event BY NAME
    SELECT 1 AS engine_id, r AS request, step, 4 AS blocks,
        unnest(CASE
            WHEN r = 3 AND i = 9 THEN [{{op: 'resume', time_ns: start_ns + 50}}]
            WHEN i = 0 THEN
                [{{op: 'schedule', time_ns: start_ns + 50}}, {{op: 'first_token', time_ns: start_ns + 1450}}]
            WHEN i = 14 THEN [{{op: 'finish', time_ns: start_ns + 1460}}] ELSE [] END, recursive := true)
    FROM share;
INSERT INTO request_event BY NAME
    SELECT 1 AS engine_id, 3 AS request, step, 4 AS blocks, 'preempt' AS op, start_ns + 60 AS time_ns
    FROM step_schedule WHERE step = 26;
DELETE FROM request_event WHERE request = 19 AND op = 'finish';
INSERT INTO request BY NAME
    SELECT r AS request, 1 AS engine_id, concat('internal-', r) AS internal_id, 16 AS prompt_tokens,
        15 AS output_tokens,
        CASE WHEN r = 2 THEN getvariable('hostile') ELSE concat('chat-', r) END AS external_id,
        CASE WHEN r <= 4 THEN 'job' END AS session, CASE WHEN r <= 4 THEN r END AS turn, 8 AS local_cached_tokens,
        0 AS external_cached_tokens, min(start_ns) - 500 AS arrival_ns, min(start_ns) - 400 AS queued_ns,
        min(start_ns) + 50 AS scheduled_ns, min(start_ns) + 1450 AS first_token_ns,
        CASE WHEN r <> 19 THEN max(start_ns) + 1460 END AS finished_ns,
        CASE WHEN r = 5 THEN 'abort' WHEN r <> 19 THEN 'length' END AS finish_reason
    FROM share GROUP BY r;

-- A profile: a graph launch a step, of five kernels and sometimes a copy; two kernels of a step overlap.
INSERT INTO source (source_id, kind, file) VALUES (1, 'nsight', 'p.sqlite');
INSERT INTO gpu_process VALUES (1, 42, 2, 'pid');
INSERT INTO profiled_thread VALUES (1, 42, 4242, 'launcher');
INSERT INTO kernel_name (kernel_name_id, source_id, short_name, category) VALUES
    (1, 1, 'attention_kernel', 'attention'), (2, 1, getvariable('hostile'), 'gemm');
INSERT INTO gpu_call BY NAME
    SELECT step AS call_id, 1 AS source_id, 'runtime' AS api, start_ns + 200 AS start_ns, start_ns + 220 AS end_ns,
        42 AS pid, 4242 AS tid, 'cudaGraphLaunch' AS name, step AS correlation, 0 AS return_value FROM step_schedule;
INSERT INTO gpu_activity BY NAME
    SELECT row_number() OVER (ORDER BY step, k) AS activity_id, 1 AS source_id,
        CASE WHEN k = 5 THEN 'memcpy' ELSE 'kernel' END AS kind, start_ns + 300 + k * 100 AS start_ns,
        start_ns + 390 + k * 100 + CASE WHEN k = 2 THEN 50 ELSE 0 END AS end_ns, 42 AS pid, 0 AS device, 7 AS stream,
        step AS correlation, CASE WHEN k < 5 THEN k % 2 + 1 END AS kernel_name_id
    FROM step_schedule, range(6) t(k) WHERE k < 5 OR step % 10 = 0;
INSERT INTO gpu_transfer BY NAME
    SELECT activity_id, 4096 AS bytes, 'host_to_device' AS copy_kind FROM gpu_activity WHERE kind = 'memcpy';
INSERT INTO gpu_attribution BY NAME
    SELECT activity_id, correlation AS call_id, 1 AS engine_id, correlation AS step, 'nvtx_forward' AS method
    FROM gpu_activity;
INSERT INTO nvtx BY NAME
    SELECT 1 AS source_id, 'push_pop' AS kind, start_ns + 190 AS start_ns, start_ns + 230 AS end_ns, 42 AS pid,
        4242 AS tid, 'range' AS name, step AS payload FROM step_schedule;
-- A second profile of the same thread: its range crosses one of the first's.
INSERT INTO source (source_id, kind, file) VALUES (2, 'nsight', 'q.sqlite');
INSERT INTO gpu_process VALUES (2, 42, 2, 'pid');
INSERT INTO profiled_thread VALUES (2, 42, 4242, 'launcher');
INSERT INTO nvtx BY NAME
    SELECT 2 AS source_id, 'push_pop' AS kind, start_ns + 10 AS start_ns, end_ns + 10 AS end_ns, pid, tid, name, payload
    FROM nvtx;
INSERT INTO gpu_metric BY NAME
    SELECT 1 AS source_id, start_ns AS time_ns, 1 AS type_id, 5 AS metric_id, 'SM active' AS metric, step AS value
    FROM step_schedule;
INSERT INTO kv_window BY NAME
    SELECT 2 AS process_id, start_ns + 300 + l * 200 + k * 50 AS start_ns, start_ns + 340 + l * 200 + k * 50 AS end_ns,
        1 AS engine_id, step, l AS layer, CASE k WHEN 0 THEN 'write' ELSE 'attention' END AS kind
    FROM step_schedule, range(2) a(l), range(2) b(k);

-- Three blocks are pinned together, one is still pinned at the end; one transfer never ended.
INSERT INTO pin_start BY NAME
    SELECT 1 AS engine_id, {epoch} + 5000 + pin * 100 AS time_ns, 5 AS step, pin, block_id, 'ttl' AS cause, 1 AS request
    FROM (VALUES (1, 10), (1, 11), (1, 12), (2, 13)) t(pin, block_id);
INSERT INTO pin_end BY NAME
    SELECT 1 AS engine_id, {epoch} + 9000 AS time_ns, 9 AS step, 1 AS pin, block_id, 'expired' AS reason
    FROM range(10, 13) t(block_id);
INSERT INTO transfer_submit BY NAME
    SELECT 2 AS process_id, {epoch} + t * 1000 AS submitted_ns, 1 AS engine_id, t AS step, t AS transfer,
        'C' AS connector, 'store' AS direction, 'gpu' AS from_tier, 'cpu' AS to_tier, 1 AS blocks, 1000 AS bytes
    FROM range(1, 4) r(t);
INSERT INTO transfer_end BY NAME
    SELECT 2 AS process_id, {epoch} + t * 1000 + 2000 AS finished_ns, t AS transfer, 1000 AS bytes, true AS success
    FROM range(1, 3) r(t);
"""


@pytest.fixture(scope="session")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 steps of one engine and its worker, profiled. Not to be written to."""
    return make(tmp_path_factory.mktemp("trace") / "trace.duckdb")


def make(path: Path, sql: str = _TRACE, steps: int = STEPS) -> Path:
    with duckdb.connect(str(path)) as connection:
        create_schema(connection)
        connection.execute("SET VARIABLE hostile = $text", {"text": HOSTILE})
        connection.execute(sql.format(version=TRACE_VERSION, epoch=EPOCH_NS, steps=steps))
    return path
