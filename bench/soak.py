"""Hours of steady load on two served CPU engines side by side: one under `kvtrace record`, one without kvtrace.

    python bench/soak.py FOLDER --minutes 120
    python bench/soak.py FOLDER --table          # of what was measured so far, while it runs too

Both get the same requests over the OpenAI API, streamed, from the same number of clients, who think between turns and
keep the machine partly idle. Whatever else the machine does disturbs both, so ratios tell more than figures. CPU time
per output token is that of all of an engine's processes, kvtrace's own included. Everything listens on the loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from kvtrace.format.layout import RUN_DIR_VARIABLE
from kvtrace.launch.meter import Meter

MODEL = Path(__file__).parent.parent / "examples" / "tiny-llama"
KINDS = ("recorded", "without")
TURNS, SHARED_TOKENS, NEW_TOKENS, OUTPUT_TOKENS = 3, 64, 48, 48
ENGINE = {
    "--model": MODEL,
    "--served-model-name": "tiny",
    "--load-format": "dummy",
    "--block-size": 32,
    "--max-model-len": 512,
    "--max-num-seqs": 16,
    "--num-gpu-blocks-override": 64,
    "--gpu-memory-utilization": 0.1,
}
SWITCHES = ("--skip-tokenizer-init", "--enforce-eager", "--disable-uvicorn-access-log")
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
}
MOST_MINUTES, MOST_CLIENTS, START_S, END_S = 24 * 60, 16, 300, 60
WARM_UP_MINUTES = 10
MEMORY = ("Rss", "Pss", "Pss_Anon", "Pss_File")


class Side:
    """An engine behind an OpenAI API, and what its clients saw since the last sample."""

    def __init__(self, kind: str, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.kind, self.run = kind, folder / "run"
        options = [str(word) for pair in ENGINE.items() for word in pair]
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), *options, *SWITCHES]
        environment = {**os.environ, **ENVIRONMENT}
        environment.pop(RUN_DIR_VARIABLE, None)
        if kind == "recorded":
            command = [sys.executable, "-m", "kvtrace", "record", "-o", str(self.run), "--", *command]
        else:
            environment["VLLM_PLUGINS"] = ""  # not even loaded
        with (folder / f"{kind}.log").open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        self.meter = Meter(self.run)
        self.tokens = self.failed = 0
        self.requests: list[tuple[float, float, float]] = []

    def is_up(self) -> bool:
        if self.process.poll() is not None:
            raise SystemExit(f"the engine {self.kind} ended while it started: see {self.kind}.log")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
            return True
        return False

    def sample(self) -> dict[str, Any]:
        """Processes' memory in KiB and CPU seconds; counts so far; TTFT, mean gap and latency of new requests, ms."""
        processes = []
        for process in (root := psutil.Process(self.process.pid), *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error, OSError):
                times = process.cpu_times()
                facts = {"pid": process.pid, "what": role(process), "cpu_s": times.user + times.system}
                processes.append(facts | memory(process.pid))
        requests, self.requests = self.requests, []
        record = {"processes": processes, "tokens": self.tokens, "failed": self.failed, "requests": requests}
        if self.kind == "recorded":
            reading = self.meter.read(time.monotonic_ns())
            files = [path.lstat() for path in self.run.rglob("*")]
            record |= {
                "records": reading and reading.records,
                "record_bytes": reading and reading.bytes,
                "dropped": reading and reading.dropped,
                "disk_bytes": sum(facts.st_blocks * 512 for facts in files),
            }
        return record

    def end(self) -> None:
        """As Ctrl-C would; a process that does not end is killed, and only it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()


def role(process: psutil.Process) -> str:
    words = process.cmdline() or [process.name()]
    if words[1:4] == ["-m", "kvtrace", "record"]:
        return "kvtrace record"
    return "API server" if "vllm.entrypoints.openai.api_server" in words else words[0].rsplit("/", 1)[-1]


def memory(pid: int) -> dict[str, int]:
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    return {words[0][:-1]: int(words[1]) for words in lines if words[0][:-1] in MEMORY}


async def client(side: Side, number: int, think_s: float, until: float) -> None:
    """Jobs of a few turns, one after another; the same ones on both sides."""
    import openai

    chance = random.Random(number)
    api = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{side.port}/v1", api_key="none", timeout=60)
    job = 0
    while time.monotonic() < until:
        prompt, job = [7] * SHARED_TOKENS, job + 1
        for turn in range(TURNS):
            prompt += [chance.randrange(10, 4000) for _ in range(NEW_TOKENS)]
            await asyncio.sleep(think_s * chance.uniform(0.5, 1.5))
            try:
                await ask(side, api, prompt, f"{number}-{job}", turn)
            except (openai.OpenAIError, OSError) as error:
                side.failed += 1
                print(f"{side.kind}: {error!r}", flush=True)
                if side.process.poll() is not None:
                    return


async def ask(side: Side, api: Any, prompt: list[int], session: str, turn: int) -> None:
    more = {"ignore_eos": True, "detokenize": False, "return_token_ids": True}
    tags = {"kvtrace_session": session, "kvtrace_turn": turn}
    sent = time.monotonic()
    stream = await api.completions.create(
        model="tiny",
        prompt=list(prompt),
        max_tokens=OUTPUT_TOKENS,
        temperature=0,
        stream=True,
        extra_body={**more, "vllm_xargs": tags},
    )
    first = last = None
    tokens = 0
    async for event in stream:
        came = sum(len((choice.model_extra or {}).get("token_ids") or ()) for choice in event.choices)
        if came:
            last = time.monotonic()
            first = first or last
            tokens += came
    if tokens != OUTPUT_TOKENS or first is None or last is None:
        raise OSError(f"{tokens} tokens came, {OUTPUT_TOKENS} were asked for")
    side.tokens += tokens
    times = (first - sent, (last - first) / (tokens - 1), last - sent)
    side.requests.append((round(times[0] * 1e3, 3), round(times[1] * 1e3, 4), round(times[2] * 1e3, 3)))


async def soak(folder: Path, minutes: float, clients: int, think_s: float) -> None:
    sides = [Side(kind, folder) for kind in KINDS]
    begun = time.monotonic()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        while not all(side.is_up() for side in sides):
            if stop.is_set() or time.monotonic() - begun > START_S:
                raise SystemExit("stopped before both engines were up")
            await asyncio.sleep(1)
        begun = time.monotonic()
        until = begun + minutes * 60
        work = [asyncio.create_task(client(side, i, think_s, until)) for side in sides for i in range(clients)]
        with (folder / "soak.jsonl").open("x", encoding="utf-8") as file:
            while True:
                elapsed_s = time.monotonic() - begun
                record = {"elapsed_s": round(elapsed_s, 3), "load": os.getloadavg()[0]}
                file.write(json.dumps(record | {side.kind: side.sample() for side in sides}) + "\n")
                file.flush()
                if stop.is_set() or elapsed_s >= minutes * 60 or any(side.process.poll() is not None for side in sides):
                    break
                next_s = min((elapsed_s // 60 + 1) * 60, minutes * 60)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), begun + next_s - time.monotonic())
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    finally:
        for side in sides:
            side.end()


def table(folder: Path) -> None:
    """Return the figures after a warm-up (or from the beginning of a soak shorter than that)."""
    samples = [json.loads(line) for line in (folder / "soak.jsonl").read_text().splitlines()]
    kept = [sample for sample in samples if sample["elapsed_s"] >= WARM_UP_MINUTES * 60]
    samples = kept if len(kept) > 2 else samples
    first, last = samples[0], samples[-1]
    hours = [sample["elapsed_s"] / 3600 for sample in samples]
    load = statistics.mean(sample["load"] for sample in samples)
    print(f"from minute {hours[0] * 60:.0f} to {hours[-1] * 60:.1f}, load {load:.1f}")
    tokens = {kind: last[kind]["tokens"] - first[kind]["tokens"] for kind in KINDS}
    cpu = {kind: cpu_s(last[kind]) - cpu_s(first[kind]) for kind in KINDS}
    show("output tokens/s", {kind: tokens[kind] / (hours[-1] - hours[0]) / 3600 for kind in KINDS})
    show("CPU ms per token", {kind: cpu[kind] / tokens[kind] * 1e3 for kind in KINDS})
    pieces = [piece_ratio(part) for part in (samples[i : i + 11] for i in range(0, len(samples) - 10, 10))]
    if pieces:
        print(f"  its ratio in pieces of ten minutes: {min(pieces):.3f} to {max(pieces):.3f}")
    for index, name in enumerate(("TTFT", "inter-token", "latency")):
        values = {kind: sorted(one[index] for s in samples[1:] for one in s[kind]["requests"]) for kind in KINDS}
        for percent in (50, 99):
            show(f"{name} p{percent}, ms", {k: v[min(len(v) * percent // 100, len(v) - 1)] for k, v in values.items()})
    show("failed", {kind: last[kind]["failed"] for kind in KINDS})
    for kind in KINDS:
        for process in last[kind]["processes"]:
            series = [(h, p) for h, s in zip(hours, samples, strict=True) for p in s[kind]["processes"]
                      if p["pid"] == process["pid"]]  # fmt: skip
            slopes = "  ".join(
                f"{name} {process[name] / 1024:.1f} MiB {slope([(h, p[name] / 1024) for h, p in series]):+.2f}/h"
                for name in MEMORY
            )
            print(f"{kind}, {process['what']} {process['pid']}: {slopes}")
    recorded = last["recorded"]
    print(f"records {recorded['records']:,}, {recorded['record_bytes'] / 1e6:,.1f} MB, on disk "
          f"{recorded['disk_bytes'] / 1e6:,.1f} MB, dropped {recorded['dropped']}")  # fmt: skip


def cpu_s(side: dict[str, Any]) -> float:
    return sum(process["cpu_s"] for process in side["processes"])


def piece_ratio(part: list[dict[str, Any]]) -> float:
    """CPU time per token, recorded to without, over some samples."""
    per_token = [
        (cpu_s(part[-1][kind]) - cpu_s(part[0][kind])) / (part[-1][kind]["tokens"] - part[0][kind]["tokens"])
        for kind in KINDS
    ]
    return per_token[0] / per_token[1]


def slope(points: list[tuple[float, float]]) -> float:
    """Least squares, per unit of the first coordinate."""
    return statistics.linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else float("nan")


def show(name: str, values: dict[str, float]) -> None:
    recorded, without = (values[kind] for kind in KINDS)
    ratio = f"{recorded / without:.4f}" if without else "-"
    print(f"{name:20} recorded {recorded:10,.3f}   without {without:10,.3f}   ratio {ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--clients", type=int, default=2, help="of each engine")
    parser.add_argument("--think", type=float, default=5.0, help="seconds between an answer and the next request")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if not given.table:
        given.folder.mkdir(parents=True)
        minutes, clients = min(given.minutes, MOST_MINUTES), min(given.clients, MOST_CLIENTS)
        asyncio.run(soak(given.folder, minutes, clients, max(given.think, 0.1)))
    table(given.folder)


if __name__ == "__main__":
    main()
