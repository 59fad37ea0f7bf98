"""Cost of recording tenants, in microseconds of CPU time a request in the API process.

    python bench/tenant_cost.py [ROUNDS]

vLLM's own middleware, serving class and assignment of ids, called as for a request of twelve headers; their time
without the hooks is taken off. Median of all rounds.
"""

from __future__ import annotations

import contextvars
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm import SamplingParams
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.serve.elastic_ep.middleware import ScalingMiddleware
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.input_processor import InputProcessor

from kvtrace.capture.recorder import Recorder
from kvtrace.capture.tenants import Tenants
from kvtrace.probes import tenants
from kvtrace.probes.hooks import Patches

CALLS = 2_000
TENANT = "acme-production"
HEADERS = [(b"x-header-%d" % number, b"value") for number in range(11)]
KINDS: dict[str, dict[str, Any]] = {
    "no tenant": {},
    "user": {"user": TENANT},
    "header": {"header": TENANT.encode()},
    "tag": {"extra_args": {"kvtrace_tenant": TENANT}},
}


def requests(user: str | None = None, header: bytes = b"", extra_args: Any = None) -> Callable[[], None]:
    """A function that handles requests as far as hooks see them."""
    middleware, scope = ScalingMiddleware(lambda *_: None), {"type": "http", "headers": list(HEADERS)}
    if header:
        scope["headers"].append((b"x-tenant-id", header))
    body, parameters = CompletionRequest(prompt=[1], user=user), SamplingParams(extra_args=extra_args)
    engine = [
        EngineCoreRequest(f"cmpl-{n:016x}-0", [1], None, parameters, None, 0.0, None, None, None) for n in range(CALLS)
    ]

    def handle() -> None:
        for request in engine:
            middleware(scope, None, None)
            OpenAIServingCompletion.create_completion(None, body).close()
            InputProcessor.assign_request_id(request)

    return handle


def timed_us(kind: dict[str, Any]) -> float:
    """Microseconds a request."""
    handle = requests(**kind)
    start = time.thread_time_ns()
    contextvars.copy_context().run(handle)
    return (time.thread_time_ns() - start) / 1e3 / CALLS


def main(rounds: int = 21) -> None:
    """Print a line for each way to tell a tenant."""
    with tempfile.TemporaryDirectory() as folder:
        patches = Patches(lambda *told: print(told) if told[1] == "disabled" else None)
        hooks = tenants.hooks(Recorder(Path(folder)), Tenants())
        for name, kind in KINDS.items():
            spent = []
            for _ in range(rounds):
                without = timed_us(kind)
                patches.install(hooks)
                spent.append(timed_us(kind) - without)
                patches.uninstall()
            print(f"{name:<10} {statistics.median(spent):6.2f} us a request  ({min(spent):.2f} to {max(spent):.2f})")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
