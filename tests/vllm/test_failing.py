"""The step that an engine dies of is the one that people ask about: it is in the trace, though no result came."""

from __future__ import annotations

import json
from pathlib import Path

from tests.vllm.conftest import ENGINE, HERE, ingested, kvtrace, rows, vllm_environment
from tests.vllm.failing import FAILS_AT


def test_the_step_in_which_the_executor_fails_is_recorded(warm_python: list[str], tmp_path: Path) -> None:
    script = [*warm_python, str(HERE / "failing.py"), json.dumps(ENGINE)]
    done = kvtrace("record", "-o", tmp_path / "run", "--", *script, env=vllm_environment(), timeout=300)
    assert "dead: EngineDeadError" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    recorded = ingested(tmp_path / "run", {}, done.stderr)
    steps = "SELECT step, prefill_tokens, decode_tokens FROM step_schedule WHERE budget_left_tokens < budget_tokens"
    assert [row[1:] for row in rows(recorded, f"{steps} ORDER BY step")] == [(100, 0)] + [(0, 1)] * (FAILS_AT - 1)
    [(last,)] = rows(recorded, f"SELECT max(step) FROM ({steps})")
    assert rows(recorded, f"SELECT scheduled_tokens FROM step_request WHERE step = {last}") == [(1,)]
