"""The two ways to an engine: vLLM's AsyncLLM in this process, or an OpenAI API over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.lab.client import Ask, Piece


class InProcess:
    """An AsyncLLM, made here. Imports vLLM on use."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        from vllm.config import KVTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        given = dict(arguments)
        if isinstance(connector := given.get("kv_transfer_config"), Mapping):  # LLM takes a dict, the arguments do not
            given["kv_transfer_config"] = KVTransferConfig(**connector)
        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**given))

    async def ask(self, request: Ask) -> AsyncIterator[Piece]:
        """Generate, streaming."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            max_tokens=request.output_tokens,
            ignore_eos=True,
            detokenize=False,
            temperature=0,
            extra_args=dict(request.tags),
            output_kind=RequestOutputKind.DELTA,
        )
        prompt: Any = {"prompt_token_ids": list(request.prompt)}
        async for output in self._llm.generate(prompt, parameters, request.request_id, priority=request.priority):
            yield Piece(output.outputs[0].token_ids, output.num_cached_tokens)

    async def hold(self) -> None:
        """Take no further step; what is asked waits in the engine's queue."""
        await self._llm.pause_generation(mode="keep", clear_cache=False)

    async def release(self) -> None:
        """Take steps again. Requests that were sent before are in the queue: they go to the engine in order."""
        await self._llm.resume_generation()

    @property
    def queued(self) -> int:
        """Requests that were sent to the engine and have not finished."""
        return int(self._llm.output_processor.get_num_unfinished_requests())

    async def forget(self) -> bool:
        """Empty the GPU's prefix cache. False: vLLM refused, as it does while blocks are in use."""
        return await self._llm.reset_prefix_cache() is not False

    @property
    def is_dead(self) -> bool:
        """The engine failed and takes no more requests."""
        return bool(self._llm.errored)

    def close(self) -> None:
        """End the engine."""
        self._llm.shutdown()


class Served:
    """An engine behind `vllm serve`, or another server with the same completions API.

    Args:
        url: Where it listens, without `/v1`.
        model: The name it serves; asked for if not given.
        timeout_s: Longest time without a byte, s.
    """

    def __init__(self, url: str, model: str | None = None, timeout_s: float = 600) -> None:
        self._url = url.rstrip("/")
        self._model = model
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Served:
        try:
            import aiohttp
        except ModuleNotFoundError:
            raise KvtraceError("aiohttp is not installed; it comes with vLLM, or: pip install aiohttp") from None
        timeout = aiohttp.ClientTimeout(total=None, sock_read=self._timeout_s)
        # vLLM's API keeps a connection a request, and a line of the stream may hold many token ids
        self._http = aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(limit=0), read_bufsize=1 << 22
        )
        if self._model is None:
            try:
                async with self._http.get(f"{self._url}/v1/models") as response:
                    self._model = str((await response.json())["data"][0]["id"])
            except (aiohttp.ClientError, KeyError, IndexError, TypeError, ValueError) as error:
                await self._http.close()
                raise KvtraceError(
                    f"{self._url}/v1/models does not answer as an OpenAI server would: {error}"
                ) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self._http.close()

    queued = 0

    async def hold(self) -> None:
        """Refuse: a server's engine takes steps as it likes.

        Raises:
            KvtraceError: Always.
        """
        raise KvtraceError("arrival batch needs an engine that `kvtrace lab run` starts; use arrival all with a server")

    async def release(self) -> None:
        """Do nothing: it was never held."""

    async def ask(self, request: Ask) -> AsyncIterator[Piece]:
        """Generate, streaming server-sent events.

        Raises:
            KvtraceError: The server answers with an error.
        """
        body = {
            "model": self._model,
            "prompt": list(request.prompt),
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "detokenize": False,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "priority": request.priority,
            "vllm_xargs": dict(request.tags),
        }
        headers = {"X-Request-Id": request.request_id}
        async with self._http.post(f"{self._url}/v1/completions", json=body, headers=headers) as response:
            if response.status != 200:
                raise KvtraceError(f"HTTP {response.status}: {(await response.text())[:300]}")
            async for line in response.content:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    yield piece_of(json.loads(line[6:]))


def piece_of(event: Mapping[str, Any]) -> Piece:
    """Parse a server-sent event of a completion.

    Raises:
        KvtraceError: It says that the request failed.
    """
    if error := event.get("error"):
        raise KvtraceError(f"the server says: {str(error)[:300]}")
    choices = event.get("choices") or []
    tokens = (choices[0].get("token_ids") or []) if choices else []
    details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
    return Piece(tokens, details.get("cached_tokens"), event.get("id"))
