"""Cost of `kvtrace top` and `kvtrace metrics` to a served engine under load, and their memory.

Starts a recorded server and loads it with clients. Then phases alternate: both commands run, `top` in a terminal of
80 columns and `metrics` scraped every second; or both are stopped (SIGSTOP). A phase's throughput is what the server
itself counted (`vllm:generation_tokens`). Each pair of phases gives a ratio and the memory of both at its end.
Interrupted (Ctrl-C, `timeout -s INT`), it tells of the complete pairs.

    python -m bench.live --minutes 10 -- vllm serve MODEL --port 8000
    python -m bench.live --minutes 10 --clients 64 --prompt-tokens 2000 -- vllm serve MODEL --port 8000
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import pty
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

KVTRACE = (sys.executable, "-m", "kvtrace")
START_S = 900
SETTLE_S = 3
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Watcher(NamedTuple):
    """A command that is measured: its name, its process and its resident memory over time."""

    name: str
    pid: int
    memory: list[tuple[float, int]]

    def cpu_s(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S

    def look(self) -> None:
        """Note its resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        self.memory.append((time.monotonic(), pages * PAGE_BYTES))


def main() -> None:
    """Measure and print."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        run = Path(folder) / "run"
        stack.enter_context(served(options, run))
        stack.enter_context(loaded(options))
        watchers = [stack.enter_context(top(run)), stack.enter_context(metrics(run))]
        pairs: list[dict[bool, float]] = []
        used_s = dict.fromkeys((watcher.name for watcher in watchers), 0.0)
        time.sleep(SETTLE_S)
        begin = time.monotonic()
        with contextlib.suppress(KeyboardInterrupt):
            for number in range(max(1, round(options.minutes * 60 / options.phase_seconds / 2))):
                rates: dict[bool, float] = {}
                used = dict(used_s)
                for beside in (True, False) if number % 2 else (False, True):
                    before = {watcher.name: watcher.cpu_s() for watcher in watchers}
                    rates[beside] = phase(options, watchers, beside)
                    for watcher in watchers:
                        used[watcher.name] += (watcher.cpu_s() - before[watcher.name]) if beside else 0
                pairs.append(rates)
                used_s = used
                resident = ", ".join(f"{watcher.name} {watcher.memory[-1][1] / 1e6:.1f} MB" for watcher in watchers)
                print(
                    f"{(time.monotonic() - begin) / 60:5.1f} min: without {rates[False]:,.1f}, "
                    f"beside {rates[True]:,.1f} tokens/s; {resident}",
                    flush=True,
                )
        report(pairs, watchers, used_s, len(pairs) * options.phase_seconds, run)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--phase-seconds", type=float, default=20)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("command", nargs="+", help="the server, after --")
    return parser.parse_args()


@contextlib.contextmanager
def served(options: argparse.Namespace, run: Path) -> Iterator[None]:
    """The server under `kvtrace record`, once it answers."""
    command = [*KVTRACE, "record", "--quiet", "-o", str(run), "--", *options.command]
    log = run.with_name("server.log")
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            deadline = time.monotonic() + START_S
            while True:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the server did not start; the end of what it wrote:\n{log.read_text()[-4000:]}")
                with contextlib.suppress(OSError):
                    get(f"{options.url}/health")
                    break
                time.sleep(1)
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(120)


@contextlib.contextmanager
def loaded(options: argparse.Namespace) -> Iterator[None]:
    """Clients that send one request after the other; a third of the prompts begins with one of eight prefixes."""
    model = json.loads(get(f"{options.url}/v1/models"))["data"][0]["id"]
    enough = threading.Event()

    def client(number: int) -> None:
        chance = random.Random(number)
        while not enough.is_set():
            prefix = [10 + chance.randrange(8)] * (options.prompt_tokens // 2) if chance.random() < 1 / 3 else []
            rest = [chance.randrange(10, 200) for _ in range(options.prompt_tokens - len(prefix))]
            body = {"model": model, "prompt": prefix + rest, "max_tokens": options.output_tokens, "ignore_eos": True}
            with contextlib.suppress(OSError):
                get(f"{options.url}/v1/completions", {**body, "detokenize": False, "temperature": 0})

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(options.clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        enough.set()
        for thread in threads:
            thread.join(60)


def get(url: str, body: dict[str, Any] | None = None) -> str:
    """The text at an address."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        text: str = answer.read().decode()
    return text


@contextlib.contextmanager
def top(run: Path) -> Iterator[Watcher]:
    """`kvtrace top` in a terminal whose output is read and thrown away."""
    pid, descriptor = pty.fork()
    if pid == 0:
        termios.tcsetwinsize(0, (24, 80))
        os.execve(KVTRACE[0], [*KVTRACE, "top", str(run)], {**os.environ, "TERM": "xterm"})

    def read() -> None:
        with contextlib.suppress(OSError):
            while os.read(descriptor, 1 << 16):
                pass

    threading.Thread(target=read, daemon=True).start()
    yield from watched("top", pid)


@contextlib.contextmanager
def metrics(run: Path) -> Iterator[Watcher]:
    """`kvtrace metrics`, scraped every second."""
    with subprocess.Popen([*KVTRACE, "metrics", str(run), "--port", "0"], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        found = re.search(rb"http\S+/metrics", process.stderr.readline())
        assert found, "the exporter did not say where it is"
        address = found[0].decode()

        def scrape() -> None:
            while True:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(address, timeout=120).read()
                time.sleep(1)

        threading.Thread(target=scrape, daemon=True).start()
        yield from watched("metrics", process.pid)


def watched(name: str, pid: int) -> Iterator[Watcher]:
    """A command until the end, when it is ended, stopped or not."""
    try:
        yield Watcher(name, pid, [])
    finally:
        for number in (signal.SIGTERM, signal.SIGCONT):
            os.kill(pid, number)


def phase(options: argparse.Namespace, watchers: list[Watcher], beside: bool) -> float:
    """Tokens per second of a phase, beside the commands or with both stopped."""
    for watcher in watchers:
        os.kill(watcher.pid, signal.SIGCONT if beside else signal.SIGSTOP)
    time.sleep(SETTLE_S)
    start, tokens = time.monotonic(), generated(options.url)
    while time.monotonic() < start + options.phase_seconds - SETTLE_S:
        time.sleep(1)
        for watcher in watchers if beside else ():
            watcher.look()
    rate = (generated(options.url) - tokens) / (time.monotonic() - start)
    if not rate:
        raise SystemExit("the server generates nothing: does it take prompts of token ids?")
    return rate


def generated(url: str) -> float:
    """Tokens that the server has generated."""
    found = re.findall(r"^vllm:generation_tokens_total(?:\{[^}]*\})? (\S+)$", get(f"{url}/metrics"), re.MULTILINE)
    return sum(map(float, found))


def report(
    pairs: list[dict[bool, float]], watchers: list[Watcher], used_s: dict[str, float], beside_s: float, run: Path
) -> None:
    """Print the ratio of throughputs with its interval, and each command's memory and processor time."""
    if not pairs:
        raise SystemExit("no pair of phases was complete")
    logs = [math.log(rates[True] / rates[False]) for rates in pairs]
    mean = statistics.fmean(logs)
    print(f"without  {statistics.median(rates[False] for rates in pairs):,.1f} tokens/s (median of {len(logs)} phases)")
    print(f"beside   {statistics.median(rates[True] for rates in pairs):,.1f} tokens/s")
    if len(logs) > 1:
        half = 1.96 * statistics.stdev(logs) / math.sqrt(len(logs))
        print(f"ratio    {math.exp(mean):.4f} (95%: {math.exp(mean - half):.4f} to {math.exp(mean + half):.4f})")
    size = sum(path.stat().st_blocks * 512 for path in run.rglob("*") if path.is_file())
    print(f"recorded {size / 1e6:,.0f} MB")
    for watcher in watchers:
        later = watcher.memory[len(watcher.memory) // 4 :]
        slope = statistics.linear_regression([at for at, _ in later], [size for _, size in later]).slope
        print(
            f"{watcher.name:<8} {watcher.memory[-1][1] / 1e6:.1f} MB resident, {slope * 60 / 1e3:+.1f} kB a minute "
            f"after the first quarter; {used_s[watcher.name] / beside_s:.2%} of a core"
        )


if __name__ == "__main__":
    main()
