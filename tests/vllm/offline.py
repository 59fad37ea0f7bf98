"""A multi-turn, prefix-sharing workload on an offline `LLM`; writes what vLLM says of it as JSON.

Run as `python offline.py CONFIG_JSON OUTPUT`, under `kvtrace record`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))


def main(config: dict[str, Any], output: Path) -> None:
    from truth import SENTINEL, KvEvents
    from vllm import LLM, SamplingParams

    ports = config.get("kv_events_ports")
    engine = dict(config["engine"])
    block_size = engine["block_size"]
    if ports:
        engine["kv_events_config"] = KvEvents.config(ports)
    events = KvEvents(ports, block_size) if ports else None
    llm = LLM(**engine)
    outputs = []
    histories = [[7] * config["shared_tokens"] + [20 + session] * 20 for session in range(config["sessions"])]
    for turn in range(config["turns"]):
        parameters = [
            SamplingParams(
                max_tokens=config["output_tokens"],
                ignore_eos=True,
                detokenize=False,
                temperature=0,
                extra_args={"kvtrace_session": f"session-{session}", "kvtrace_turn": turn},
            )
            for session in range(len(histories))
        ]
        prompts = [{"prompt_token_ids": list(history)} for history in histories]
        for session, result in enumerate(llm.generate(prompts, parameters, use_tqdm=False)):
            outputs.append(describe(result, session, turn))
            histories[session] += [*result.outputs[0].token_ids, *[40 + turn] * 10]
    last = llm.generate(
        [{"prompt_token_ids": [SENTINEL] * block_size + [1]}],
        SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False),
        use_tqdm=False,
    )
    outputs.append(describe(last[0], None, None))
    counters = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    truth = {"outputs": outputs, "counters": counters, "events": events.wait() if events else None}
    output.write_text(json.dumps(truth))
    if "shutdown_timeout_s" in config:
        llm.llm_engine.engine_core.shutdown(timeout=config["shutdown_timeout_s"])


def describe(result: Any, session: int | None, turn: int | None) -> dict[str, Any]:
    return {
        "external_id": result.request_id,
        "prompt_tokens": len(result.prompt_token_ids),
        "output_tokens": len(result.outputs[0].token_ids),
        "cached_tokens": result.num_cached_tokens,
        "finish_reason": result.outputs[0].finish_reason,
        "session": None if session is None else f"session-{session}",
        "turn": turn,
    }


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
