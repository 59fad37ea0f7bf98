"""A multi-turn, prefix-sharing workload on a small vLLM engine with too few KV blocks, so that things happen.

Eight sessions talk for four turns each. All share a system prompt; every turn sends the whole history again. The pool
holds about half of what they need at once: prefixes are evicted before they are reused, and requests are preempted.
Weights are random and prompts are token ids, so nothing is downloaded.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

MODEL = Path(__file__).parent / "tiny-llama"
SESSIONS, TURNS = 8, 4
SYSTEM_PROMPT = [7] * 96


def main() -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(MODEL),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        block_size=32,
        max_model_len=1024,
        max_num_seqs=6,
        max_num_batched_tokens=256,
        num_gpu_blocks_override=48,
        gpu_memory_utilization=0.1,
    )
    histories = [SYSTEM_PROMPT + [20 + session] * (40 + 10 * session) for session in range(SESSIONS)]
    for turn in range(TURNS):
        start = time.perf_counter()
        parameters = [
            SamplingParams(
                max_tokens=48 + 8 * (session % 3),
                ignore_eos=True,
                detokenize=False,
                temperature=0,
                extra_args={"kvtrace_session": f"session-{session}", "kvtrace_turn": turn},
            )
            for session in range(SESSIONS)
        ]
        prompts = [{"prompt_token_ids": list(history)} for history in histories]
        outputs = llm.generate(prompts, parameters, use_tqdm=False)
        for history, output in zip(histories, outputs, strict=True):
            history += [*output.outputs[0].token_ids, *[300 + turn] * 24]
        cached = sum(output.num_cached_tokens or 0 for output in outputs)
        asked = sum(len(output.prompt_token_ids) for output in outputs)
        print(
            f"turn {turn}: {asked} prompt tokens, {cached} of them from the prefix cache, "
            f"{time.perf_counter() - start:.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
