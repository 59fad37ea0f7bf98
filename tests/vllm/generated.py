"""Generated workloads on real engines, one after the other in forks of one process. Run under `kvtrace record`.

    python generated.py ENGINES_JSON SEED LOG

Requests share prefixes or go on where an earlier one ended, arrive between any two steps, have priorities and samples,
stop by themselves or are aborted. The engine is kept between workloads; sometimes its prefix cache is reset.
"""

from __future__ import annotations

import json
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

from forks import forked

WORKLOADS, REQUESTS = 3, 20


def main(engines: list[dict[str, Any]], seed: int, log: Path) -> None:
    import vllm.entrypoints.llm  # noqa: F401 - imported once, for all forks

    for number, engine in enumerate(engines):
        forked(partial(run, engine, random.Random(seed * 1000 + number)), log)


def run(engine: dict[str, Any], chance: random.Random) -> None:
    from vllm import LLM

    llm = LLM(**engine)
    for workload in range(WORKLOADS):
        drive(llm.llm_engine, workload, chance, engine)
        if chance.random() < 0.3:
            llm.reset_prefix_cache()


def drive(engine: Any, workload: int, chance: random.Random, options: dict[str, Any]) -> None:
    """Add requests between steps until all have come, and step until all have ended."""
    pause = chance.choice([0, 2, 6])  # steps between arrivals, at most
    prefixes = [[chance.randrange(10, 4000)] * chance.randrange(0, 200) for _ in range(chance.randrange(1, 5))]
    waits = 0
    coming = [f"{workload}-{number}" for number in range(REQUESTS)]
    aborts: dict[str, int] = {}
    ended: list[list[int]] = []
    step = 0
    while coming or engine.has_unfinished_requests():
        while coming and waits <= 0:
            name = coming.pop(0)
            engine.add_request(
                name,
                {"prompt_token_ids": prompt(prefixes, ended, chance)},
                sampling(options, chance),
                priority=priority(options, chance),
            )
            if chance.random() < 0.15:
                aborts[name] = step + chance.randrange(1, 40)
            waits = chance.randrange(0, pause + 1)
        for name in [name for name, at in aborts.items() if at <= step]:
            del aborts[name]
            engine.abort_request([name])
        for output in engine.step():
            if output.finished:
                ended.append([*output.prompt_token_ids, *output.outputs[0].token_ids])
        step, waits = step + 1, waits - 1


def prompt(prefixes: list[list[int]], ended: list[list[int]], chance: random.Random) -> list[int]:
    """A prefix, or all tokens of a request that has ended, as a conversation's next turn has them; and some own."""
    if ended and chance.random() < 0.3:
        return [*chance.choice(ended[-8:])[:300], chance.randrange(10, 4000)]
    own = [chance.randrange(10, 4000)] * chance.randrange(1, 120)
    return [*chance.choice(prefixes), *own]


def sampling(options: dict[str, Any], chance: random.Random) -> Any:
    from vllm import SamplingParams

    greedy = "speculative_config" in options  # such outputs repeat themselves, so that drafts fit
    return SamplingParams(
        max_tokens=chance.randrange(1, 60),
        ignore_eos=True,
        detokenize=False,
        temperature=0.0 if greedy else 1.0,
        n=1 if greedy else chance.choice([1, 1, 1, 1, 2, 3]),
        stop_token_ids=list(range(150)) if chance.random() < 0.3 else None,
        skip_reading_prefix_cache=True if chance.random() < 0.1 else None,
    )


def priority(options: dict[str, Any], chance: random.Random) -> int:
    return chance.randrange(-2, 3) if options.get("scheduling_policy") == "priority" else 0


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
