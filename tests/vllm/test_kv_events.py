"""The events that vLLM publishes, recorded to a file beside kvtrace: both say the same."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import kvtrace as package

from .conftest import ENGINE, HERE, WORKLOAD, free_port, kvtrace, vllm_environment


def test_published_events_are_the_recorded_ones(warm_python: list[str], tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    events, run = tmp_path / "kv-events.jsonl", tmp_path / "run"
    command = [sys.executable, "-m", "kvtrace.probes.kv_events", f"tcp://127.0.0.1:{ports[0]}"]
    listener = subprocess.Popen(
        [*command, "--replay", f"tcp://127.0.0.1:{ports[1]}", "-o", str(events)], stderr=subprocess.PIPE, text=True
    )
    try:
        config = {**WORKLOAD, "turns": 2, "engine": ENGINE, "kv_events_ports": ports}
        script = [*warm_python, str(HERE / "offline.py"), json.dumps(config), str(tmp_path / "truth.json")]
        done = kvtrace("record", "-o", run, "--", *script, env=vllm_environment(), timeout=300)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        listener.send_signal(signal.SIGINT)
        said = listener.communicate(timeout=30)[1]
    finally:
        listener.kill()
    assert listener.returncode == 0, said
    assert "missed" not in said

    done = kvtrace("ingest", run, "--kv-events", events)
    assert done.returncode == 0, done.stderr
    truth = json.loads((tmp_path / "truth.json").read_text())["events"]
    with package.open(run / "trace.duckdb") as trace:
        rows = trace.sql("SELECT op::VARCHAR AS op, count(*) AS n FROM kv_event GROUP BY 1", "arrow").to_pylist()
        joins = trace.sql("SELECT * FROM join_count WHERE name LIKE 'kv_event%'", "arrow").to_pylist()
    published = {row["op"]: row["n"] for row in rows}
    assert published["stored"] == sum(count for _, count in truth["stored"])
    assert published["removed"] == sum(count for _, count in truth["removed"]) > 0
    assert [(join["matched"], join["unmatched"]) for join in joins] == [
        (published["stored"], 0),
        (published["removed"], 0),
    ]
