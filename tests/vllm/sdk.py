"""Clients that use the OpenAI SDK: agents, batch jobs, requests of two samples, and some that leave; what they saw."""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import openai

from tests.vllm.served import MARKED_API_KEY, Server
from tests.vllm.truth import SENTINEL, KvEvents

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "tiny"
TENANTS = {kind: f"marked-tenant-{kind}" for kind in ("agent", "batch", "pair", "leaver")}
"""Tenant of each kind of client; by default nothing that a recording leaves may have the names."""
OVERRULED = "marked-tenant-overruled"
AGENTS, TURNS, BATCHES, PAIRS, LEAVERS = 6, 4, 6, 2, 3
TOKENS_BEFORE_LEAVING, LEAVER_TOKENS = 4, 460
"""After how many tokens a client leaves, and how many it asked for: as many as fit, as it may be slow to leave."""
SAMPLE_S = 0.02


@dataclass
class Seen:
    """Record of what a client saw of a request: its id, its own clock (UNIX ns), and the usage that the server told."""

    kind: str
    session: str
    turn: int
    id: str = ""
    sent_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0
    ended_ns: int = 0
    tokens: list[int] = field(default_factory=list)
    received: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    @property
    def total_ms(self) -> float:
        """Time from sending to the last token."""
        return (self.last_ns - self.sent_ns) / 1e6

    @property
    def ended_ms(self) -> float:
        """Time from sending to the end of the stream, which a server only writes when it has no token left."""
        return (self.ended_ns - self.sent_ns) / 1e6


@dataclass
class Gauges:
    """Samples of `/metrics` while the clients ran: time, requests waiting, share of KV blocks used."""

    samples: list[tuple[float, float, float]] = field(default_factory=list)


def ask(api: openai.OpenAI, seen: Seen, prompt: list[int], max_tokens: int, *, n: int = 1, leave: int = 0) -> Seen:
    """Stream a completion; with `leave` the client goes after so many tokens.

    A batch job tells its tenant by a header, a request of two samples by a tag; others by OpenAI's `user`.
    """
    tags: dict[str, Any] = {"kvtrace_session": seen.session, "kvtrace_turn": seen.turn}
    tenant, headers = TENANTS[seen.kind], {}
    user = tenant if seen.kind in ("agent", "leaver") else OVERRULED
    if seen.kind in ("batch", "pair"):
        headers["X-Tenant-ID"] = tenant if seen.kind == "batch" else OVERRULED
    if seen.kind == "pair":
        tags["kvtrace_tenant"] = tenant
    seen.sent_ns = time.time_ns()
    stream = api.completions.create(
        model=MODEL,
        user=user,
        extra_headers=headers,
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=1.0 if n > 1 else 0,
        n=n,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True, "detokenize": False, "return_token_ids": True, "vllm_xargs": tags},
    )
    for event in stream:
        seen.id = event.id
        for choice in event.choices:
            came = (choice.model_extra or {}).get("token_ids") or []
            if came:
                seen.last_ns = time.time_ns()
                seen.first_ns = seen.first_ns or seen.last_ns
                seen.received += len(came)
                seen.tokens += came
        if event.usage:
            details = event.usage.prompt_tokens_details
            seen.prompt_tokens, seen.output_tokens = event.usage.prompt_tokens, event.usage.completion_tokens
            seen.cached_tokens = (details.cached_tokens if details else 0) or 0
        if leave and seen.received >= leave:
            stream.close()
            break
    seen.ended_ns = time.time_ns()
    return seen


def agent(api: openai.OpenAI, number: int) -> list[Seen]:
    """Turns that each begin with all that was said before."""
    history, turns = [7] * 40 + [20 + number] * 30, []
    for turn in range(TURNS):
        seen = ask(api, Seen("agent", f"agent-{number}", turn), history, 30)
        history += [*seen.tokens, *[60 + turn] * 20]
        turns.append(seen)
    return turns


def batch(api: openai.OpenAI, number: int) -> list[Seen]:
    """A long prompt of its own."""
    return [ask(api, Seen("batch", f"batch-{number}", 0), [100 + number] * 200, 40)]


def pair(api: openai.OpenAI, number: int) -> list[Seen]:
    """Two samples of one prompt."""
    return [ask(api, Seen("pair", f"pair-{number}", 0), [7] * 40 + [150 + number] * 30, 20, n=2)]


def leaver(api: openai.OpenAI, number: int) -> list[Seen]:
    """A client that disconnects."""
    prompt = [170 + number] * 50
    return [ask(api, Seen("leaver", f"leaver-{number}", 0), prompt, LEAVER_TOKENS, leave=TOKENS_BEFORE_LEAVING)]


def drive(server: Server, events: KvEvents, block_size: int) -> dict[str, Any]:
    """Run all clients at once; what they saw, and what the server said of it."""
    api = openai.OpenAI(base_url=f"{server.url}/v1", api_key=MARKED_API_KEY, timeout=120, max_retries=0)
    work = [(agent, AGENTS), (batch, BATCHES), (pair, PAIRS), (leaver, LEAVERS)]
    jobs = [(job, number) for job, count in work for number in range(count)]
    with sampling(server) as gauges, ThreadPoolExecutor(len(jobs)) as pool:
        seen = [each for found in pool.map(lambda job: job[0](api, job[1]), jobs) for each in found]
    while gauge(metrics(server), "vllm:num_requests_running"):
        time.sleep(SAMPLE_S)
    server.complete([SENTINEL] * block_size + [1], "sentinel", 1)
    told = events.wait()
    return {"seen": seen, "gauges": gauges, "events": told, "metrics": metrics(server)}


@contextmanager
def sampling(server: Server) -> Iterator[Gauges]:
    """Sample gauges of `/metrics` meanwhile."""
    gauges, stop = Gauges(), threading.Event()

    def sample() -> None:
        while not stop.wait(SAMPLE_S):
            found = metrics(server)
            waiting, used = gauge(found, "vllm:num_requests_waiting"), gauge(found, "vllm:kv_cache_usage_perc")
            gauges.samples.append((time.time(), waiting, used))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield gauges
    finally:
        stop.set()
        thread.join()


def metrics(server: Server) -> dict[str, float]:
    """Every sample of `/metrics` by its name with its labels."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as response:
        text = response.read().decode()
    return {name: float(value) for name, value in re.findall(r"^(vllm:\S+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)}


def gauge(found: dict[str, float], name: str, label: str = "") -> float:
    """Sum of a metric over its labels, or over those with `label`."""
    return sum(value for key, value in found.items() if key.partition("{")[0] == name and label in key)
