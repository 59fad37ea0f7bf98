"""Cost of recording in steps in which much happens at once: 32 requests are admitted, 32 requests end.

    python bench/burst.py [PAIRS]
    python bench/burst.py PAIRS new     # prompts that no block is there of: blocks are evicted, allocated and cached

One engine on the CPU, frontend, engine and worker in one thread; its hooks do their part or are passed by, batch by
batch in turns. A batch is 32 requests of 36 blocks each, which are there already but for the first time; the batches
before are the same, or have other prompts (some 3 s a batch). Clocked are `Scheduler.schedule` of the step that admits
them, and `update_from_output` of the last one: what the first tokens wait for, and the last ones. On a GPU the rest of
a step is done while the GPU works.

Microseconds: medians, and the median of the pairs' differences, with the quartiles.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from throughput import MODEL, prepare, record_selectably

REQUESTS, BLOCKS, BLOCK_TOKENS = 32, 36, 32
CLOCKED = {"schedule": "32 are admitted", "update_from_output": "32 end"}
Times = dict[str, float]


def engine(new: bool) -> Callable[[], Times]:
    """An engine; a function that runs a batch on it and says what the first `schedule` took and the last update, us."""
    from vllm import LLM, SamplingParams
    from vllm.v1.core.sched.scheduler import Scheduler

    tokens = BLOCKS * BLOCK_TOKENS
    llm = LLM(
        str(MODEL),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        hf_overrides={"max_position_embeddings": 2 * tokens},
        block_size=BLOCK_TOKENS,
        max_model_len=2 * tokens,
        max_num_seqs=REQUESTS,
        max_num_batched_tokens=REQUESTS * tokens,
        num_gpu_blocks_override=2 * REQUESTS * BLOCKS,
        gpu_memory_utilization=0.1,
    )
    took: dict[str, list[float]] = {name: [] for name in CLOCKED}
    for name in CLOCKED:
        setattr(Scheduler, name, clocked(getattr(Scheduler, name), took[name]))
    parameters = SamplingParams(max_tokens=3, ignore_eos=True, detokenize=False)
    number = 0

    def batch() -> Times:
        nonlocal number
        for times in took.values():
            times.clear()
        for request in range(REQUESTS):
            number += 1
            own = number if new else 0
            rest = [(request * 7 + position * 3) % 500 + 3 for position in range(2, tokens)]
            prompt = [own % 400 + 3, own // 400 + 3, *rest]
            llm.llm_engine.add_request(str(number), {"prompt_token_ids": prompt}, parameters)
        while llm.llm_engine.has_unfinished_requests():
            llm.llm_engine.step()
        return {"schedule": took["schedule"][0], "update_from_output": took["update_from_output"][-1]}

    return batch


def clocked(function: Callable[..., Any], times: list[float]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter_ns()
        try:
            return function(*args, **kwargs)
        finally:
            times.append((time.perf_counter_ns() - start) / 1e3)

    return call


def main(pairs: int = 150, prompts: str = "") -> None:
    prepare("")
    recording = record_selectably()
    batch = engine(prompts == "new")
    for _ in range(6):
        batch()
    found: dict[bool, list[Times]] = {False: [], True: []}
    for pair in range(pairs):
        for kind in (False, True) if pair % 2 else (True, False):
            recording[0] = kind
            found[kind].append(batch())
    print(f"{'':16} {'passed by':>10} {'recording':>10} {'more':>7} (quartiles)")
    for name, what in CLOCKED.items():
        more = [on[name] - off[name] for on, off in zip(found[True], found[False], strict=True)]
        low, middle, high = statistics.quantiles(more, n=4)
        off, on = (statistics.median(times[name] for times in found[kind]) for kind in (False, True))
        print(f"{what:16} {off:10.0f} {on:10.0f} {middle:7.0f} ({low:.0f} to {high:.0f})")


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((int, str), sys.argv[1:], strict=False)))
