"""One engine of a prefill/decode pair: reads requests as JSON lines, answers each with one.

Run as `python leg.py ENGINE_JSON`, under `kvtrace record`. A line has request_id, prompt (token ids) and max_tokens.
"""

from __future__ import annotations

import json
import os
import sys


def main(engine: dict[str, object]) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM and its processes print is not in between
    from vllm import LLM, SamplingParams

    llm = LLM(**engine).llm_engine
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        parameters = SamplingParams(max_tokens=asked["max_tokens"], ignore_eos=True, detokenize=False, temperature=0)
        llm.add_request(asked["request_id"], {"prompt_token_ids": asked["prompt"]}, parameters)
        answered = False
        while llm.has_unfinished_requests():
            for output in llm.step():
                if not answered or output.finished:
                    tokens = list(output.outputs[0].token_ids)
                    print(json.dumps({"tokens": tokens, "finished": output.finished}), file=answers, flush=True)
                    answered = True


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
