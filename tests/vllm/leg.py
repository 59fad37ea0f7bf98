"""One engine of a prefill/decode pair: reads requests as JSON lines, answers each with its first token and at its end.

Run as `python leg.py ENGINE_JSON`, under `kvtrace record`. A line has request_id, prompt (token ids), max_tokens and,
for connectors that need it, kv_transfer_params; or it is a list of such requests, which run at once. The line "metrics"
is answered with vLLM's own metrics of NIXL: count and sum of each histogram.
"""

from __future__ import annotations

import json
import os
import sys


def main(engine: dict[str, object]) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM and its processes print is not in between
    from vllm import LLM, SamplingParams
    from vllm.platforms.cpu import CpuPlatform

    # NIXL's workers all take the last core: two engines would starve each other there.
    CpuPlatform.discover_numa_topology = classmethod(lambda _: [])
    offline = LLM(**engine)
    llm = offline.llm_engine

    def answer(line: object) -> None:
        print(json.dumps(line), file=answers, flush=True)

    answer({"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        if asked == "metrics":
            found = [each for each in offline.get_metrics() if "nixl" in each.name]
            answer({each.name: [each.count, each.sum] for each in found if hasattr(each, "sum")})
            continue
        for one in asked if isinstance(asked, list) else [asked]:
            more = {"extra_args": {"kv_transfer_params": params}} if (params := one.get("kv_transfer_params")) else {}
            parameters = SamplingParams(
                max_tokens=one["max_tokens"], ignore_eos=True, detokenize=False, temperature=0, **more
            )
            llm.add_request(one["request_id"], {"prompt_token_ids": one["prompt"]}, parameters)
        answered: set[str] = set()
        while llm.has_unfinished_requests():
            for output in llm.step():
                if output.request_id in answered and not output.finished:
                    continue
                answered.add(output.request_id)
                facts = {"request_id": output.request_id, "tokens": list(output.outputs[0].token_ids)}
                answer({**facts, "finished": output.finished, "kv_transfer_params": output.kv_transfer_params})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
