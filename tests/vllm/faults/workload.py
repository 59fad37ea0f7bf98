"""A short workload whose every step is the same each time, and what came of it."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from typing import Any

TURNS, SESSIONS, OUTPUT_TOKENS = 2, 8, 30
ABORTED_AT_STEP, MIDWAY_AT_STEP = 12, 30


def run(llm: Any, midway: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Prompts that share a prefix, one too long for a step, a pool too small for all, an abort, a second turn.

    `midway` is called between two steps.

    Returns:
        What vLLM made of it: each request's tokens, how it ended and what it found in the cache; what each step
        scheduled. Everything is the same at each run, with greedy sampling and an engine in this process.
    """
    engine = llm.llm_engine
    steps: list[Any] = []
    _watch_steps(engine, steps)
    requests: dict[str, Any] = {}
    histories = {f"s{i}": [7] * 40 + [20 + i] * (240 if i == 3 else 20) for i in range(SESSIONS)}
    count = 0
    for turn in range(TURNS):
        for session, history in histories.items():
            engine.add_request(f"{session}t{turn}", {"prompt_token_ids": list(history)}, parameters(session, turn))
        while engine.has_unfinished_requests():
            count += 1
            if count == ABORTED_AT_STEP:
                engine.abort_request(["s5t0"])
            if count == MIDWAY_AT_STEP:
                midway()
            for output in engine.step():
                if output.finished:
                    [completion] = output.outputs
                    requests[output.request_id] = {
                        "tokens": list(completion.token_ids),
                        "reason": completion.finish_reason,
                        "cached": output.num_cached_tokens,
                    }
        for session, history in histories.items():
            answer = requests.get(f"{session}t{turn}", {"tokens": [5]})["tokens"]
            history.extend([*answer, *[40 + turn] * 10])
    result: dict[str, Any] = json.loads(json.dumps({"requests": requests, "steps": steps}))
    return result


def parameters(session: str, turn: int) -> Any:
    """Sampling parameters of a request, with its tags."""
    from vllm import SamplingParams

    supplied = session == "s6"  # by the connector of variant `states`
    tags = {"kvtrace_session": f"{session}-supplied" if supplied else session, "kvtrace_turn": turn}
    tags |= {"kvtrace_tool": "fast", "kvtrace_tenant": f"tenant-{session}"}
    return SamplingParams(
        max_tokens=OUTPUT_TOKENS, ignore_eos=True, detokenize=False, temperature=0, seed=1, extra_args=tags
    )


def _watch_steps(engine: Any, steps: list[Any]) -> None:
    """Note what each step schedules. Internal request ids are the given ones with a random ending."""
    scheduler = engine.engine_core.engine_core.scheduler
    schedule = scheduler.schedule

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        given = {request.rpartition("-")[0]: tokens for request, tokens in output.num_scheduled_tokens.items()}
        blocks = [data.block_ids for data in output.scheduled_new_reqs]
        steps.append([given, blocks, output.scheduled_cached_reqs.new_block_ids])
        return output

    scheduler.schedule = watched


def kept() -> dict[str, int]:
    """Objects that live on after all requests ended: vLLM's requests, and what kvtrace knows of them."""
    gc.collect()
    names = ("Request", "LiveRequest")
    counts = dict.fromkeys(names, 0)
    for thing in gc.get_objects():
        kind = type(thing)
        if kind.__name__ in names and kind.__module__ in ("vllm.v1.request", "kvtrace.probes.engine"):
            counts[kind.__name__] += 1
    return counts
