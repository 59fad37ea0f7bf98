"""Requests in rounds on an offline `LLM`; writes what vLLM says of them as JSON.

Run as `python workload.py CONFIG_JSON OUTPUT`, under `kvtrace record`. The configuration has `engine`, the LLM's
arguments, and `rounds`: lists of [prompt token, prompt length, output tokens, extra_args], with `wait_s` before each.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def main(config: dict[str, Any], output: Path) -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(**config["engine"])
    outputs = []
    for requests, wait_s in zip(config["rounds"], config["wait_s"], strict=True):
        time.sleep(wait_s)
        prompts = [{"prompt_token_ids": [token] * length} for token, length, _, _ in requests]
        parameters = [
            SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, temperature=0, extra_args=extra)
            for _, _, tokens, extra in requests
        ]
        for result in llm.generate(prompts, parameters, use_tqdm=False):
            outputs.append({"external_id": result.request_id, "cached_tokens": result.num_cached_tokens})
    metrics = [metric for metric in llm.get_metrics() if hasattr(metric, "value")]
    counters = {metric.name: metric.value for metric in metrics}
    by_source = {
        metric.labels["source"]: metric.value
        for metric in metrics
        if metric.name == "vllm:prompt_tokens_cached_by_source"  # since 0.32
    }
    output.write_text(json.dumps({"outputs": outputs, "counters": counters, "by_source": by_source}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
