"""Workloads whose prefix hits one rule each cuts, on real engines, one after the other in forks of one process.

    python gates.py ENGINES_JSON OUTPUT     # under `kvtrace record`

An engine has `options` and `cases`: a prompt each, of [token, times] pairs, whose request is tagged with the case.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from forks import forked


def main(engines: dict[str, dict[str, Any]], output: Path) -> None:
    import vllm.entrypoints.llm  # noqa: F401 - imported once, for all forks

    told = {name: forked(partial(run, **engine), output.with_suffix(".log")) for name, engine in engines.items()}
    output.write_text(json.dumps(told))


def run(options: dict[str, Any], cases: dict[str, list[list[int]]]) -> dict[str, Any]:
    """Send the prompts one by one; what vLLM says of hits, and the process that it ran in."""
    from vllm import LLM, SamplingParams

    llm = LLM(**options)
    cached = {}
    for case, parts in cases.items():
        parameters = SamplingParams(
            max_tokens=2, ignore_eos=True, detokenize=False, temperature=0, extra_args={"kvtrace_session": case}
        )
        prompt = {"prompt_token_ids": [token for token, times in parts for _ in range(times)]}
        [result] = llm.generate([prompt], parameters, use_tqdm=False)
        cached[case] = result.num_cached_tokens or 0
    counters = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    return {"pid": os.getpid(), "cached": cached, "counters": counters}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
