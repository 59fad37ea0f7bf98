"""Stages of handovers: records a prefill and a decode engine with NIXL, and sends requests through both.

    python bench/handover.py MODEL_DIR [--requests 200] [--at-once 8] [--prompt 1000,3000] [--keep DIR] [--cpu]
    python bench/handover.py --check DIR       # recordings brought from a machine without DuckDB

The engines take the first two GPUs, or with `--cpu` CPU memory. Prints each stage's share of the latency and a table of
checks; exits with 1 if one failed. A check's other side is the client or vLLM's own metrics.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
PORTS = {"prefill": 18100, "decode": 18200}
FIRST = {"do_remote_decode": True, "do_remote_prefill": False}
OUTPUT_TOKENS = 16
STAGES = "intake", "scheduler", "dispatch", "handshake", "posting", "wire", "notification", "admission"
METRICS = "bytes_transferred", "num_descriptors", "xfer_time_seconds", "post_time_seconds"


def start(name: str, folder: Path, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start a recorded server of one role."""
    connector = {"kv_connector": "NixlConnector", "kv_role": ROLES[name], "kv_buffer_device": options.buffer}
    served = ["--model", options.model, "--load-format", "dummy", "--skip-tokenizer-init", "--port", str(PORTS[name])]
    served += ["--max-model-len", str(options.prompt[1] + 64), "--num-gpu-blocks-override", str(options.blocks)]
    served += ["--gpu-memory-utilization", "0.3"]
    served += ["--kv-transfer-config", json.dumps(connector), "--served-model-name", "m", *options.serve]
    command = [
        sys.executable,
        "-m",
        "kvtrace",
        "record",
        "--force",
        "--kv-level",
        "host",
        "-o",
        str(folder / name),
        "--",
    ]
    command += [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *served]
    environment = {**os.environ, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(PORTS[name] + 50)}
    if not options.cpu:
        environment["CUDA_VISIBLE_DEVICES"] = str(list(ROLES).index(name))
    log = (folder / f"{name}.log").open("wb")
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def wait(name: str, server: subprocess.Popen[bytes], until: float) -> None:
    """Wait until a server answers."""
    while time.monotonic() < until and server.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{PORTS[name]}/health", timeout=5):
            return
        time.sleep(0.5)
    sys.exit(f"{name} did not start, see its log")


def ask(name: str, request_id: str, prompt: list[int], max_tokens: int, params: dict[str, Any]) -> dict[str, Any]:
    body = {"model": "m", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    body |= {"detokenize": False, "return_token_ids": True, "kv_transfer_params": params}
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
    url = f"http://127.0.0.1:{PORTS[name]}/v1/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return dict(json.load(answer))


def hand_over(number: int, prompt: list[int]) -> dict[str, Any]:
    """Do as a proxy does: the prefill engine for one token, then the decode engine with what it answered."""
    name = f"handover-{number}"
    first = ask("prefill", name, prompt, 1, FIRST)
    sent = time.monotonic()
    second = ask("decode", name, prompt, OUTPUT_TOKENS, first["kv_transfer_params"])
    tokens = [answer["choices"][0]["token_ids"] for answer in (first, second)]
    return {
        "request_id": name,
        "prompt_tokens": len(prompt),
        "same_token": tokens[0][0] == tokens[1][0],
        "decode_ms": (time.monotonic() - sent) * 1e3,
    }


def nixl_metrics() -> dict[str, list[float]]:
    """Count and sum of vLLM's own histograms of NIXL, in the decode engine."""
    with urllib.request.urlopen(f"http://127.0.0.1:{PORTS['decode']}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = {}
    for name in METRICS:
        parts = [
            re.findall(rf"^vllm:nixl_{name}_{part}\{{.*\}} (\S+)$", text, re.MULTILINE) for part in ("count", "sum")
        ]
        found[name] = [sum(map(float, part)) for part in parts]
    return found


def record(folder: Path, options: argparse.Namespace) -> None:
    """Record both engines; what the client and vLLM's metrics said goes to a file."""
    until = time.monotonic() + options.start_s
    draw = random.Random(1)
    prompts = [
        [draw.randrange(10, 1000) for _ in range(draw.randint(*options.prompt))] for _ in range(options.requests)
    ]
    with ExitStack() as servers:
        started = {name: start(name, folder, options) for name in ROLES}
        for server in started.values():
            servers.callback(end, server)
        for name, server in started.items():
            wait(name, server, until)
        print(f"both engines answer; {options.requests} requests, {options.at_once} at once", flush=True)
        with ThreadPoolExecutor(options.at_once) as pool:
            answers = list(pool.map(hand_over, range(options.requests), prompts))
        time.sleep(1)  # the prefill engine finds the last notifications
        client = {"answers": answers, "metrics": nixl_metrics()}
    (folder / "client.json").write_text(json.dumps(client))


def end(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGINT)
    try:
        server.wait(40)
    except subprocess.TimeoutExpired:
        server.kill()


def check(folder: Path) -> int:
    """Print stages and checks; the number of checks that failed."""
    from kvtrace.ingest.run import ingest
    from kvtrace.queries import Trace

    client = json.loads((folder / "client.json").read_text())
    answers = {answer["request_id"]: answer for answer in client["answers"]}
    with Trace(ingest([folder / "prefill", folder / "decode"], folder / "trace.duckdb").target) as trace:
        rows = trace.query("handover-stages", format="arrow").to_pylist()
        [told] = trace.sql(
            "SELECT sum(bytes) AS bytes_transferred, sum(posted_descriptors) AS num_descriptors, "
            "sum(wire_ns) / 1e9 AS xfer_time_seconds, sum(post_ns) / 1e9 AS post_time_seconds, count(*) AS reads "
            "FROM handover_read",
            format="arrow",
        ).to_pylist()
        hooks = trace.sql("SELECT count(*) AS n FROM hook WHERE state = 'disabled'", format="arrow").to_pylist()[0]["n"]
    whole = [row for row in rows if None not in [row[f"{stage}_ms"] for stage in STAGES]]
    total = sum(row["latency_ms"] for row in whole) or 1
    print(f"{'stage':14}{'median ms':>11}{'p99 ms':>10}{'share':>8}")
    for stage in (*STAGES, "latency", "release", "wire_least", "nixl"):
        values = sorted(row[f"{stage}_ms"] for row in whole if row[f"{stage}_ms"] is not None)
        if values:
            middle, late = values[len(values) // 2], values[min(len(values) - 1, len(values) * 99 // 100)]
            share = f"{sum(values) / total:8.1%}" if stage in STAGES else ""
            print(f"{stage:14}{middle:11.3f}{late:10.3f}{share}")
    sums = [abs(sum(row[f"{stage}_ms"] for stage in STAGES) / row["latency_ms"] - 1) for row in whole]
    name_of = {row["decode_request"]: re.sub(r"^cmpl-|-0$", "", str(row["external_id"])) for row in rows}
    longer = [row for row in whole if row["latency_ms"] > answers[name_of[row["decode_request"]]]["decode_ms"]]
    checks = {
        "handovers": (len(rows), len(answers)),
        "handovers with all stages": (len(whole), len(answers)),
        "sums that are off the latency by over 1%": (sum(off > 0.01 for off in sums), 0),
        "negative stages": (sum(row[f"{stage}_ms"] < 0 for row in whole for stage in STAGES), 0),
        "latencies longer than the client waited": (len(longer), 0),
        "handovers without notice in the prefill engine": (sum(row["release_ms"] is None for row in rows), 0),
        "failed reads": (sum(row["failed_reads"] for row in rows), 0),
        "hooks that failed": (hooks, 0),
    }
    for name, (count, summed) in client["metrics"].items():
        checks[f"reads, as vLLM's {name} counts"] = (told["reads"], count)
        checks[name] = (round(float(told[name]), 6), round(summed, 6))
    failed = 0
    for name, (found, expected) in checks.items():
        failed += found != expected
        print(f"{'ok' if found == expected else 'WRONG':6}{name}: {found} ({expected})")
    asked, posted, read = (
        sum(row[column] or 0 for row in rows) for column in ("descriptors", "posted_descriptors", "bytes")
    )
    same = sum(answer["same_token"] for answer in answers.values())
    print(
        f"{same} of {len(answers)} first tokens are the prefill engine's (kernels of other shapes may round otherwise)"
    )
    print(f"{asked:,} descriptors, {posted:,} after NIXL joined them; {read / 1e9:.2f} GB")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--prompt", default="1000,3000", help="fewest and most tokens of a prompt")
    parser.add_argument("--blocks", type=int, default=8192, help="KV blocks of each engine")
    parser.add_argument("--start-s", type=float, default=150, help="time that the engines may take to start")
    parser.add_argument("--cpu", action="store_true", help="without GPUs")
    parser.add_argument("--buffer", default=None, help="kv_buffer_device; the engines' own memory by default")
    parser.add_argument("--keep", type=Path, help="folder for the recordings")
    parser.add_argument("--check", type=Path, help="only check the recordings of this folder")
    options, options.serve = parser.parse_known_args()
    options.prompt = tuple(int(tokens) for tokens in options.prompt.split(","))
    options.buffer = options.buffer or ("cpu" if options.cpu else "cuda")
    if options.check:
        return int(check(options.check) > 0)
    with tempfile.TemporaryDirectory(prefix="handover") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        record(folder, options)
        try:
            import duckdb  # noqa: F401
        except ImportError:
            print(f"no DuckDB here: python bench/handover.py --check {folder}")
            return 0
        return int(check(folder) > 0)


if __name__ == "__main__":
    sys.exit(main())
