"""Agents' turns on Llama-3.1-8B's shape, with too few KV blocks: what the recordings in this folder are of.

    kvtrace record -o run -- python examples/recordings/turns.py MODEL [BACKEND [OPTIONS]]

MODEL is a folder with a `config.json`, OPTIONS a JSON object of vLLM's options. Weights are random and prompts are
token ids, so nothing is downloaded.
Twelve sessions talk for three turns. All share a system prompt of 400 tokens; every turn sends the whole history again.
The pool holds about half of what they need at once: prefixes are evicted before they are reused, requests preempted.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

SESSIONS, TURNS = 12, 3
SYSTEM_PROMPT = [7] * 400


def main(model: str, backend: str = "", options: str = "{}") -> None:
    from vllm import LLM, SamplingParams

    more = {**({"attention_backend": backend} if backend else {}), **json.loads(options)}
    llm = LLM(
        model,
        load_format="dummy",
        skip_tokenizer_init=True,
        block_size=16,
        max_model_len=2048,
        max_num_seqs=8,
        max_num_batched_tokens=1024,
        num_gpu_blocks_override=250,
        gpu_memory_utilization=0.4,
        **more,
    )
    histories = [SYSTEM_PROMPT + [20 + session] * (60 + 20 * session) for session in range(SESSIONS)]
    for turn in range(TURNS):
        parameters = [
            SamplingParams(
                max_tokens=24 + 4 * (session % 4),
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
            history += [*output.outputs[0].token_ids, *[300 + turn] * 48]


if __name__ == "__main__":
    main(*sys.argv[1:])
