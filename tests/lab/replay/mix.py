"""An engine whose clients arrive at odd times, with priorities, tenants, n > 1, stops, aborts and skipped lookups."""

from __future__ import annotations

import asyncio
import os
import random

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from pathlib import Path

MODEL = Path(__file__).parents[3] / "examples" / "tiny-llama"


async def run() -> None:
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = AsyncEngineArgs(
        str(MODEL),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        block_size=32,
        max_model_len=512,
        max_num_seqs=5,
        max_num_batched_tokens=128,
        num_gpu_blocks_override=24,
        gpu_memory_utilization=0.1,
        scheduling_policy="priority",
        disable_log_stats=True,
    )
    engine = AsyncLLM.from_engine_args(arguments)
    random.seed(5)

    async def ask(number: int) -> None:
        await asyncio.sleep(0.02 * number)
        prompt = [3] * 64 + [100 + number % 4] * random.randrange(20, 150)
        sampling = SamplingParams(
            max_tokens=random.randrange(5, 60),
            ignore_eos=True,
            detokenize=False,
            temperature=1.0,
            n=2 if number % 7 == 3 else 1,
            stop_token_ids=list(range(200)) if number % 3 == 0 else None,
            skip_reading_prefix_cache=True if number % 11 == 5 else None,
            extra_args={"kvtrace_tenant": f"tenant-{number % 3}"} if number % 4 else None,
        )
        answers = engine.generate(
            {"prompt_token_ids": prompt}, sampling, f"mix-{number}", priority=number % 3 if number % 2 else 0
        )
        async for output in answers:
            if number % 9 == 4 and len(output.outputs[0].token_ids) > 3:
                break  # the client leaves: the request is aborted
        await answers.aclose()

    await asyncio.gather(*map(ask, range(60)))
    await asyncio.sleep(0.5)
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(run())
