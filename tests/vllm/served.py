"""A served engine and its clients: the same workload over the OpenAI API."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.vllm.truth import SENTINEL, KvEvents

MARKED_API_KEY = "marked-api-key-0d5e81"
"""Of the server's command line and its clients' headers; nothing that a recording leaves may have it."""

MARKED_TENANT = "marked-tenant"
"""Begins the names of all tenants."""


class Server:
    """An OpenAI server under `kvtrace record`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "the server ended while starting"
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        raise AssertionError("the server never came up")

    def complete(self, prompt: list[int], request_id: str, max_tokens: int, **tags: Any) -> dict[str, Any]:
        body = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "detokenize": False,
            "return_token_ids": True,
            "vllm_xargs": tags,
            "user": f"{MARKED_TENANT}-served",
        }
        headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
        headers["Authorization"] = f"Bearer {MARKED_API_KEY}"
        request = urllib.request.Request(f"{self.url}/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)

    def counters(self) -> dict[str, float]:
        """Prometheus counters by name, summed over labels, without their `_total`."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            text = response.read().decode()
        found: dict[str, float] = {}
        for name, value in re.findall(r"^(vllm:\w+?)_total(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE):
            found[name] = found.get(name, 0) + float(value)
        return found


@contextmanager
def serve(run: Path, engine: dict[str, Any], port: int, log: Path, environment: dict[str, str]) -> Iterator[Server]:
    """Serve under `kvtrace record`; SIGINT to the recorder ends it."""
    options = []
    for name, value in engine.items():
        flag = "--" + name.replace("_", "-")
        options += [flag] if value is True else [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    command = [sys.executable, "-m", "kvtrace", "record", "-o", str(run), "--", sys.executable, "-m"]
    command += ["vllm.entrypoints.openai.api_server", "--port", str(port), *options]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        server = Server(process, port)
        server.wait_until_up()
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def drive(server: Server, workload: dict[str, int], events: KvEvents, block_size: int) -> dict[str, Any]:
    """Run the workload; what the server said of it."""
    histories = [[7] * workload["shared_tokens"] + [20 + session] * 20 for session in range(workload["sessions"])]
    outputs = []
    with ThreadPoolExecutor(len(histories)) as pool:
        for turn in range(workload["turns"]):

            def ask(session: int, turn: int = turn) -> dict[str, Any]:
                return server.complete(
                    histories[session],
                    f"s{session}t{turn}",
                    workload["output_tokens"],
                    kvtrace_session=f"session-{session}",
                    kvtrace_turn=turn,
                )

            for session, answer in enumerate(pool.map(ask, range(len(histories)))):
                outputs.append(describe(answer, f"cmpl-s{session}t{turn}-0", f"session-{session}", turn))
                histories[session] += [*answer["choices"][0]["token_ids"], *[40 + turn] * 10]
    last = server.complete([SENTINEL] * block_size + [1], "sentinel", 1)
    outputs.append(describe(last, "cmpl-sentinel-0", None, None))
    return {"outputs": outputs, "events": events.wait(), "counters": server.counters()}


def describe(answer: dict[str, Any], external_id: str, session: str | None, turn: int | None) -> dict[str, Any]:
    usage = answer["usage"]
    return {
        "external_id": external_id,
        "prompt_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "cached_tokens": (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0),
        "finish_reason": answer["choices"][0]["finish_reason"],
        "session": session,
        "turn": turn,
    }
