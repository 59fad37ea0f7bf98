"""A served engine that is told to end, and told again while it ends: what it wrote until then is recorded."""

from __future__ import annotations

import http.client
import json
import signal
import time
from pathlib import Path

from kvtrace.format.reader import open_recording
from tests.vllm.conftest import ENGINE, free_port, ingested, vllm_environment
from tests.vllm.served import Server, serve

IN_FLIGHT, OUTPUT_TOKENS = 4, 300
PATIENCE_S = 60


def ask(server: Server, number: int) -> http.client.HTTPConnection:
    """Send a request and wait for nothing: vLLM may kill its engine without an answer to what is in flight."""
    client = http.client.HTTPConnection(server.url.removeprefix("http://"))
    body = {"prompt": [9] * 100 + [number], "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "detokenize": False}
    client.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return client


def wait_for(text: str, log: Path, server: Server) -> None:
    """Until the server has said so, or has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while text not in log.read_text() and server.process.poll() is None:
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.005)


def test_sigterm_while_shutting_down_loses_nothing(tmp_path: Path) -> None:
    # GIVEN a server with requests in flight, whose recorder counts what it writes
    engine = {name: value for name, value in ENGINE.items() if name != "disable_log_stats"}
    log = tmp_path / "log"
    with serve(tmp_path / "run", engine, free_port(), log, vllm_environment(KVTRACE_COUNT_WRITES="1")) as server:
        server.complete([7] * 100, "first", 8)
        clients = [ask(server, number) for number in range(IN_FLIGHT)]
        deadline = time.monotonic() + PATIENCE_S
        while server.counters().get("vllm:generation_tokens", 0) < 8 + IN_FLIGHT:
            assert time.monotonic() < deadline

        # WHEN the recorder gets SIGTERM, and again while vLLM stops its engine, and once more as the server closes
        server.process.send_signal(signal.SIGTERM)
        wait_for("[shutdown]", log, server)
        server.process.send_signal(signal.SIGTERM)
        wait_for("Shutting down", log, server)
        server.process.send_signal(signal.SIGTERM)
        for client in clients:
            client.close()
        server.process.wait(PATIENCE_S)

    # THEN what each process wrote is there, the last of it possibly uncounted or torn; and the summary was told
    recorded = ingested(tmp_path / "run", {}, log.read_text())
    assert "kvtrace: recorded 3 processes" in recorded.record_stderr
    assert "dropped" not in recorded.record_stderr
    processes = open_recording(tmp_path / "run").processes
    assert len(processes) == 3
    for process in processes:
        assert not process.missing_segments()
        segments = process.segments()
        for event, written in process.written().items():
            assert written <= sum(segment.count()[0] for segment in segments.get(event, [])) <= written + 1, event
    steps = "SELECT (SELECT count(*) FROM step_schedule) AS scheduled, (SELECT count(*) FROM step_update) AS updated"
    [counts] = recorded.trace.sql(steps, format="arrow").to_pylist()
    assert counts["scheduled"] - counts["updated"] in (0, 1)  # vLLM may kill the engine in the middle of a step
    assert counts["updated"] > 8
