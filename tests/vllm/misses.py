"""A workload that misses the prefix cache for one reason at a time; each request is tagged with that reason's case.

Run as `python misses.py CONFIG_JSON OUTPUT`, under `kvtrace record`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FIRST, SECOND, SHORT, LONG, FILLER, MORE = 11, 12, 13, 14, 15, 16
"""A prompt is one of these tokens, repeated."""


def main(config: dict[str, Any], output: Path) -> None:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    llm = LLM(**config["engine"])
    adapter = LoRARequest("tiny-adapter", 1, config["adapter"])
    cached: dict[str, int] = {}

    def ask(*cases: str, tokens: list[int], lora: Any = None, salt: str | None = None, **sampling: Any) -> None:
        """Send the same prompt once a case, all at once."""
        prompt: dict[str, Any] = {"prompt_token_ids": tokens} | ({"cache_salt": salt} if salt else {})
        parameters = [
            SamplingParams(
                max_tokens=1,
                ignore_eos=True,
                detokenize=False,
                temperature=0,
                extra_args={"kvtrace_session": case},
                **sampling,
            )
            for case in cases
        ]
        for case, result in zip(
            cases, llm.generate([prompt] * len(cases), parameters, use_tqdm=False, lora_request=lora), strict=True
        ):
            cached[case] = result.num_cached_tokens or 0

    ask("first", tokens=[FIRST] * 100)
    ask("beyond", tokens=[FIRST] * 64 + [SECOND] * 60)
    ask("short", tokens=[SHORT] * 20)
    ask("tail", tokens=[FIRST] * 100)
    ask("whole", tokens=[FIRST] * 96)
    ask("salted", tokens=[FIRST] * 100, salt="a secret")
    ask("salted-again", tokens=[FIRST] * 100, salt="a secret")
    ask("salted-otherwise", tokens=[FIRST] * 100, salt="another")
    ask("adapted", tokens=[FIRST] * 100, lora=adapter)
    ask("logprobs", tokens=[FIRST] * 100, prompt_logprobs=1)
    ask("filler", tokens=[FILLER] * 500)
    ask("evictor", tokens=[FILLER + 10] * 500)
    ask("evicted", tokens=[FIRST] * 100)
    assert llm.reset_prefix_cache()
    ask("reset", tokens=[FIRST] * 100)
    ask("ahead", "behind", tokens=[LONG] * 250)
    ask("plain-after-salted", tokens=[MORE] * 40, salt="a secret")
    ask("plain", tokens=[MORE] * 40)
    output.write_text(json.dumps(cached))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
