"""A cell with LMCache's server: its loads and stores against the hits that vLLM counts and the prompts' chunks.

`make test` installs LMCache beside the environment; elsewhere PYTHONPATH may name a folder that has it.
"""

from __future__ import annotations

import importlib.util

import duckdb
import pytest

from kvtrace.ingest.run import ingest
from kvtrace.queries.trace import TRACE_NAME
from tests.beside import beside, python_path
from tests.lab.cells import lab, small_matrix

BESIDE = beside("lmcache")
CHUNK_TOKENS = 64
pytestmark = pytest.mark.skipif(
    not BESIDE.is_dir() and importlib.util.find_spec("lmcache") is None,
    reason="LMCache is not installed: make test does it",
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    folder = tmp_path_factory.mktemp("server")
    policy = f'{{ name = "lmcache-mp", host_gib = 1, chunk_tokens = {CHUNK_TOKENS} }}'
    (folder / "small.toml").write_text(small_matrix(policy))
    done = lab("run", folder / "small.toml", "-o", folder / "sweep", timeout=400, PYTHONPATH=python_path(BESIDE))
    logs = "".join(path.read_text()[-3000:] for path in folder.glob("sweep/cells/*/log.txt"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:] + logs
    (run,) = folder.glob("sweep/cells/*/run")
    ingest(run)
    return duckdb.connect(str(run / TRACE_NAME), read_only=True)


def test_loads_bring_the_tokens_that_vllm_counts_as_hits(trace: duckdb.DuckDBPyConnection) -> None:
    """Of each request. A chunk may overlap with what the GPU has, which is not copied: `test_lmcache_mp.py` has one."""
    found = trace.sql(
        """
        WITH loaded AS (
            SELECT request, count(*) * 32 AS tokens FROM transfer_block
            WHERE direction = 'load' GROUP BY request
        )
        SELECT coalesce(tokens, 0), external_cached_tokens
        FROM request LEFT JOIN loaded USING (request)
        """
    ).fetchall()
    assert all(tokens == external for tokens, external in found)
    assert sum(tokens for tokens, _ in found) > 0


def test_transfers_have_their_blocks_bytes_and_ends(trace: duckdb.DuckDBPyConnection) -> None:
    rows = trace.sql(
        """
        SELECT t.direction::VARCHAR, t.from_tier::VARCHAR, t.to_tier::VARCHAR, t.blocks, t.bytes, b.blocks,
            t.success, t.submitted_ns <= t.finished_ns, (SELECT block_bytes FROM engine)
        FROM transfer t LEFT JOIN (SELECT transfer, count(*) AS blocks FROM transfer_block GROUP BY 1) b
            USING (transfer)
        """
    ).fetchall()
    assert {row[:3] for row in rows} == {("store", "gpu", "cpu"), ("load", "cpu", "gpu")}
    for *_, blocks, bytes_, planned, success, in_order, block_bytes in rows:
        assert blocks == planned > 0
        assert bytes_ == blocks * block_bytes
        assert success
        assert in_order


def test_stores_are_whole_chunks_behind_those_that_were_loaded(trace: duckdb.DuckDBPyConnection) -> None:
    rows = trace.sql(
        """
        SELECT coalesce(s.blocks, 0) * 32, prompt_tokens, external_cached_tokens, local_cached_tokens
        FROM request LEFT JOIN (
            SELECT request, count(*) AS blocks FROM transfer_block WHERE direction = 'store' GROUP BY request
        ) s USING (request)
        """
    ).fetchall()
    for stored, prompt, external, local in rows:
        in_server = (external + local) // CHUNK_TOKENS * CHUNK_TOKENS if external else 0
        assert stored <= prompt // CHUNK_TOKENS * CHUNK_TOKENS - in_server
        assert stored % CHUNK_TOKENS == 0
    assert sum(stored for stored, *_ in rows) > 0
