"""A streaming session on an `AsyncLLM`: three inputs, with a pause after each output but the last.

Run as `python streaming.py ENGINE_JSON OUTPUT`, under `kvtrace record`. Writes when outputs ended and inputs were sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

PAUSE_S = 0.2


async def session(engine: dict[str, Any]) -> list[dict[str, int]]:
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.engine.protocol import StreamingInput
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine))
    kind = RequestOutputKind.DELTA
    parameters = SamplingParams(max_tokens=4, ignore_eos=True, detokenize=False, temperature=0, output_kind=kind)
    answered = asyncio.Event()
    waits: list[dict[str, int]] = []

    async def inputs() -> AsyncGenerator[Any, None]:
        for number in range(3):
            if number:
                await answered.wait()
                answered.clear()
                ended = time.time_ns()
                await asyncio.sleep(PAUSE_S)
                waits.append({"output_ended_ns": ended, "input_sent_ns": time.time_ns()})
            yield StreamingInput({"prompt_token_ids": [30 + number] * 32})
        await answered.wait()

    tokens = 0
    async for output in llm.generate(inputs(), parameters, "session"):
        tokens += len(output.outputs[0].token_ids)
        if tokens and tokens % 4 == 0:
            answered.set()
    llm.shutdown()
    return waits


if __name__ == "__main__":
    found = asyncio.run(session(json.loads(sys.argv[1])))
    Path(sys.argv[2]).write_text(json.dumps({}))
    Path(os.environ["KVTRACE_TEST_SPEC_LOG"]).write_text("".join(json.dumps(line) + "\n" for line in found))
