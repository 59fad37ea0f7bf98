"""An offline engine, in a process of its own, whose executor fails in the third step that has tokens.

Run as `python failing.py ENGINE_JSON`, under `kvtrace record`; prints what the engine said of it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

FAILS_AT = 3


def main(engine: dict[str, Any]) -> None:
    from vllm import LLM, SamplingParams
    from vllm.v1.engine.exceptions import EngineDeadError
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    execute, calls = MultiprocExecutor.execute_model, 0

    def failing(self: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += output.total_num_scheduled_tokens > 0
        if calls == FAILS_AT:
            raise RuntimeError("out of memory, say")
        return execute(self, output, *args, **kwargs)

    MultiprocExecutor.execute_model = failing  # the engine's process is forked from this one
    parameters = SamplingParams(max_tokens=8, ignore_eos=True, detokenize=False)
    try:
        LLM(**engine).generate([{"prompt_token_ids": [7] * 100}], parameters, use_tqdm=False)
    except EngineDeadError as error:
        print(f"dead: {type(error).__name__}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
