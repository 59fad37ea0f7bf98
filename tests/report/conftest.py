"""Small runs made of SQL: known requests, steps and lookups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.traces import write_trace

MakeTrace = Callable[..., Path]

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>|`[a](http://evil)`\x1b[2J\u202e\"'&{{7*7}}\n# x"
"""Id that a client may send: markup of HTML, Markdown, terminals and templates."""


def run_sql(*, sessions: int = 10, turns: int = 4, slower_ms: float = 0.0, blocks: int = 100, tag: str = "s") -> str:
    """A run of `sessions` x `turns` requests, one step each. Request k arrives at k * 100 ms.

    Its first token comes after 10 + k ms, and `slower_ms` more; it ends 90 ms after that with 10 tokens, so tpot is
    10 ms. Its prompt has 100 + k tokens, of which k are found in the prefix cache.
    """
    text = tag.replace("'", "''")
    return f"""
    INSERT INTO run VALUES ('vllm_version', '0.32.0'), ('command', '["vllm", "serve", "m"]'), ('kvtrace_version', '1');
    INSERT INTO engine BY NAME SELECT 1 AS engine_id, 'm' AS model, 16 AS block_size_tokens, {blocks} AS blocks;
    CREATE TEMP TABLE k AS SELECT i, i // {turns} AS session, i % {turns} AS turn, (1000 + i * 100) * 1000000 AS ns
    FROM range({sessions * turns}) t(i);
    INSERT INTO request BY NAME SELECT
        i + 1 AS request, 1 AS engine_id, 'id-' || i AS external_id, '{text}-' || session AS session, turn AS turn,
        ns AS arrival_ns, ns AS queued_ns, ns + 1000000 AS scheduled_ns,
        ns + ((10 + i + {slower_ms}) * 1000000)::BIGINT AS first_token_ns,
        ns + ((100 + i + {slower_ms}) * 1000000)::BIGINT AS finished_ns,
        100 + i AS prompt_tokens, 10 AS output_tokens, 0 AS preemptions
    FROM k;
    INSERT INTO step_schedule BY NAME SELECT
        1 AS engine_id, i + 1 AS step, ns AS start_ns, ns + 1000 AS scheduled_ns, 1 AS running, 0 AS waiting,
        100 + i AS prefill_tokens, 0 AS chunked_prefill_tokens, 0 AS decode_tokens, 0 AS resumed_tokens,
        20 AS used_blocks, {blocks} - 20 AS free_blocks, 0 AS preempted_requests, 'none' AS admission_limit
    FROM k;
    INSERT INTO step_update BY NAME SELECT
        1 AS engine_id, i + 1 AS step, ns + 1000 AS update_ns, ns + (2 + i) * 1000000 AS end_ns FROM k;
    INSERT INTO prefix_lookup BY NAME SELECT
        1 AS engine_id, i + 1 AS step, i + 1 AS request, ns AS time_ns, 100 + i AS queried_tokens,
        i AS local_hit_tokens, true AS admitted, true AS enabled, false AS resumed
    FROM k;
    DROP TABLE k;
    """


@pytest.fixture(scope="session")
def make_trace(tmp_path_factory: pytest.TempPathFactory) -> MakeTrace:
    """Make a trace file of SQL: the schema, the trace version, then the given statements."""

    def make(sql: str = "", name: str = "trace") -> Path:
        return write_trace(tmp_path_factory.mktemp("trace") / f"{name}.duckdb", sql)

    return make


@pytest.fixture(scope="session")
def base(make_trace: MakeTrace) -> Path:
    return make_trace(run_sql(), "base")
