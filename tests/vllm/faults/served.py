"""A server and its clients in one process, without a network; only the engine has a process of its own."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
from functools import partial
from typing import Any

MOST_TOKENS = 6
_BASE = {"max_tokens": MOST_TOKENS, "temperature": 0, "ignore_eos": True, "detokenize": False, "return_token_ids": True}
_TAG = {"kvtrace_tenant": "tagged", "kvtrace_session": "s"}
_MESSAGES = [{"role": "user", "content": "hello"}]
REQUESTS: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "nobody": ("completions", {}, {"prompt": [3] * 40, **_BASE}),
    "user": ("completions", {}, {"prompt": [4] * 40, "user": "u", **_BASE}),
    "header": ("completions", {"X-Tenant-Id": "h"}, {"prompt": [5] * 40, "user": "u", **_BASE}),
    "tag": ("completions", {}, {"prompt": [6] * 40, "vllm_xargs": _TAG, **_BASE}),
    "streamed": ("completions", {}, {"prompt": [7] * 40, "user": "u", "stream": True, **_BASE}),
    # These are refused for want of a tokenizer, after the hooks have seen them.
    "chat": ("chat/completions", {}, {"messages": _MESSAGES, "user": "u"}),
    "chats": ("chat/completions/batch", {}, {"messages": [_MESSAGES, _MESSAGES], "user": "u"}),
    "responses": ("responses", {}, {"input": "hello", "user": "u"}),
    "after": ("completions", {}, {"prompt": [8] * 40, "user": "u", **_BASE}),
}
"""Path, headers and body by name. They are sent one after the other, so that each step is the same every time."""


def run(engine: dict[str, Any]) -> dict[str, Any]:
    """Serve the requests: each one's status and tokens."""
    fork = partial(multiprocessing.get_context, "fork")
    for module in [module for name, module in sys.modules.items() if name.startswith("vllm.")]:
        if "get_mp_context" in vars(module):
            vars(module)["get_mp_context"] = fork  # vLLM would spawn: the process would not have the fault
    options = []
    for name, value in engine.items():
        flag = "--" + name.replace("_", "-")
        options += [flag] if value is True else [] if value is False else [flag, str(value)]
    return asyncio.run(_serve(options))


async def _serve(options: list[str]) -> dict[str, Any]:
    import httpx
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(options)
    found: dict[str, Any] = {}
    async with build_async_engine_client(arguments) as engine:
        tasks = await engine.get_supported_tasks()
        app = build_app(arguments, tasks, engine.model_config)
        await init_app_state(engine, app.state, arguments, tasks)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://kvtrace", timeout=120) as client:
            for name, (path, headers, body) in REQUESTS.items():
                answer = await client.post(f"/v1/{path}", headers={"X-Request-Id": name, **headers}, json=body)
                found[name] = [
                    answer.status_code,
                    _tokens(answer.text) if answer.status_code == httpx.codes.OK else None,
                ]
    result: dict[str, Any] = json.loads(json.dumps({"requests": found, "steps": []}))
    return result


def _tokens(text: str) -> list[int]:
    """Tokens of an answer, also of one that was streamed."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.strip() not in ("", "data: [DONE]")]
    parts = [choice for line in lines for choice in json.loads(line)["choices"]]
    return [token for part in parts for token in part.get("token_ids") or []]
