"""Schedulers and cache managers of vLLM versions that no engine of these tests has, run from their sources.

`KVTRACE_VLLM_SOURCES` names folders that hold `vllm/`. Neither a scheduler nor a cache manager needs a compiled part.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import duckdb
import pytest

import kvtrace as package
from tests.vllm.conftest import HERE, kvtrace, vllm_environment

ROOT = HERE.parent.parent
SOURCES = [
    folder
    for folder in map(Path, filter(None, os.environ.get("KVTRACE_VLLM_SOURCES", "").split(":")))
    if "max_cache_hit_length: int | None" in (folder / "vllm/v1/core/kv_cache_manager.py").read_text()  # since 0.33
]


@pytest.fixture(params=SOURCES or [None], ids=lambda folder: folder.name if folder else "none")
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    if request.param is None:
        pytest.skip("needs the sources of vLLM 0.33 or later: KVTRACE_VLLM_SOURCES")
    return vllm_environment(PYTHONPATH=os.pathsep.join([str(request.param.resolve()), str(ROOT)]))


def test_limits_of_lookups_are_observed(environment: dict[str, str], tmp_path: Path) -> None:
    script = [sys.executable, str(HERE / "group_answers.py"), "1", str(tmp_path)]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_requests_that_wait_for_a_prefill_step_are_told_apart(environment: dict[str, str], tmp_path: Path) -> None:
    # GIVEN a recording whose scheduler is to prefill in every fourth step only
    with tarfile.open(ROOT / "examples" / "recordings" / "agents-small.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    trace = tmp_path / "agents-small" / "trace.duckdb"
    assert kvtrace("ingest", trace.parent, timeout=240).returncode == 0
    with duckdb.connect(str(trace)) as connection:
        [(settings,)] = connection.execute("SELECT settings FROM engine").fetchall()
        told = json.loads(settings)
        told["scheduler"]["prefill_schedule_interval"] = 4
        connection.execute("UPDATE engine SET settings = ?", [json.dumps(told)])
    # WHEN that vLLM's own scheduler runs its requests again, recorded
    done = kvtrace("replay", trace, "--check", "-o", tmp_path / "again.duckdb", env=environment, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    # THEN steps that held a prefill back say so, and none is called something else
    with package.open(tmp_path / "again.duckdb") as again:
        rows = again.sql("SELECT admission_limit::VARCHAR AS why, count(*) AS steps FROM step GROUP BY 1").itertuples()
        steps = {row.why: row.steps for row in rows}
    assert steps["prefill_interval"] > 0
    assert "other" not in steps
