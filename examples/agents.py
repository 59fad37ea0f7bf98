"""Agents that call tools on a small vLLM engine with too few KV blocks: the workload of examples/recordings.

Twelve jobs of six turns begin one after another. A turn's prompt is the whole history; its tool takes a while, during
which other jobs may evict the job's KV. Half of the jobs write code, the other half do research. With `--clock` the
researchers' system prompt begins with the time, and so no turn finds the KV of the turn before it.
Weights are random and prompts are token ids, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

MODEL = os.path.relpath(Path(__file__).parent / "tiny-llama")  # a recording keeps it as it is here
JOBS, TURNS = 12, 6
BLOCK = 32
APART_S = 0.35
KINDS = ("coder", "research")
TOOLS = {"coder": (("edit", 0.1), ("test", 1.2)), "research": (("search", 0.5), ("read", 0.2))}
"""Each kind's tools, in turn, and how long they take in seconds."""


def system_prompt(kind: str, time: int, *, clock: bool) -> list[int]:
    """Return six blocks that jobs of a kind share; with a clock, a researcher's begins with the time."""
    prompt = [10 + KINDS.index(kind)] * (6 * BLOCK)
    if clock and kind == "research":
        prompt[:8] = [3000 + time] * 8
    return prompt


async def run_job(engine: AsyncLLM, number: int, *, clock: bool) -> None:
    """Send a job's turns, each after the tool of the turn before it."""
    from vllm import SamplingParams

    kind = KINDS[number % 2]
    chance = random.Random(number)
    await asyncio.sleep(number * APART_S)
    history = [chance.randrange(100, 4000) for _ in range(chance.randrange(96, 224))]
    for turn in range(TURNS):
        tool, seconds = TOOLS[kind][turn % 2]
        tags = {"kvtrace_session": f"{kind}-{number // 2}", "kvtrace_turn": turn, "kvtrace_tool": tool}
        parameters = SamplingParams(
            max_tokens=chance.randrange(24, 56), ignore_eos=True, detokenize=False, temperature=0, extra_args=tags
        )
        prompt = {"prompt_token_ids": [*system_prompt(kind, number * TURNS + turn, clock=clock), *history]}
        outputs = [output async for output in engine.generate(prompt, parameters, f"{kind}-{number // 2}-{turn}")]
        await asyncio.sleep(seconds)
        result = [chance.randrange(100, 4000) for _ in range(chance.randrange(64, 192))]
        history += [*outputs[-1].outputs[0].token_ids, *result]


async def main(*, clock: bool, blocks: int) -> None:
    """Run all jobs on one engine."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            MODEL,
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=True,
            block_size=BLOCK,
            max_model_len=2048,
            max_num_seqs=8,
            max_num_batched_tokens=256,
            num_gpu_blocks_override=blocks,
            gpu_memory_utilization=0.1,
        )
    )
    await asyncio.gather(*(run_job(engine, number, clock=clock) for number in range(JOBS)))
    engine.shutdown()
    del engine  # before the interpreter ends


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clock", action="store_true", help="put the time before the researchers' system prompt")
    parser.add_argument("--blocks", type=int, default=193, help="KV blocks of the engine; one is vLLM's null block")
    asyncio.run(main(**vars(parser.parse_args())))
