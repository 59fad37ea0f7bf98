"""Jobs that call tools between turns: the TTL-pin scheduler against first come, first served.

    python bench/ttl_pin.py MODEL_DIR [--jobs 24] [--turns 4] [--tokens 1024] [--blocks 2048] [--keep DIR]

Every job sends its whole history again after each tool call. The pool holds a part of all histories, so what waits for
a tool may be evicted. Both runs are recorded with `kvtrace record`. Prints the makespan, the turns' time to the first
token (mean and 99th percentile), and the tokens from the cache; then what the pins held and what they forced.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SCHEDULER = "kvtrace.lab.ttl_pin.TTLPinScheduler"
TOOLS = {"fast": 0.3, "medium": 1.0, "slow": 6.0}
KINDS = ("fcfs", "ttl")


async def one(options: Any) -> dict[str, Any]:
    """Run all jobs on one engine in this process."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    more: dict[str, Any] = {}
    if options.one == "ttl":
        pin = {"threshold_s": options.threshold, "ttl_s": options.ttl, "tool_s": TOOLS}
        more = {"scheduler_cls": SCHEDULER, "additional_config": {"kvtrace_ttl_pin": pin}}
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=options.model,
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=options.turns * (options.tokens + options.outputs) + 64,
            num_gpu_blocks_override=options.blocks,
            gpu_memory_utilization=options.memory,
            enforce_eager=True,
            disable_log_stats=True,
            **more,
        )
    )
    first_token_s: list[float] = []
    cached = asked = 0

    async def job(number: int) -> None:
        nonlocal cached, asked
        random_ = random.Random(number)
        history: list[int] = []
        for turn in range(options.turns):
            history += [random_.randrange(3, 3000) for _ in range(options.tokens)]
            tool = random_.choice(sorted(TOOLS)) if turn < options.turns - 1 else ""
            tags: dict[str, Any] = {"kvtrace_session": f"job-{number}", "kvtrace_turn": turn, "kvtrace_tool": tool}
            parameters = SamplingParams(
                max_tokens=options.outputs,
                ignore_eos=True,
                detokenize=False,
                temperature=0,
                extra_args=tags,
                output_kind=RequestOutputKind.DELTA,
            )
            start, first = time.perf_counter(), None
            prompt: Any = {"prompt_token_ids": list(history)}
            async for output in engine.generate(prompt, parameters, f"job-{number}-turn-{turn}"):
                if first is None:
                    first = time.perf_counter() - start
                    cached += output.num_cached_tokens or 0
                history += output.outputs[0].token_ids
            first_token_s.append(first or 0.0)
            asked += len(prompt["prompt_token_ids"])
            if tool:
                await asyncio.sleep(TOOLS[tool] * random_.uniform(0.8, 1.2))

    start = time.perf_counter()
    await asyncio.gather(*(job(number) for number in range(options.jobs)))
    elapsed = time.perf_counter() - start
    engine.shutdown()
    return {
        "makespan_s": round(elapsed, 3),
        "ttft_mean_ms": round(1e3 * statistics.mean(first_token_s), 1),
        "ttft_p99_ms": round(1e3 * sorted(first_token_s)[int(0.99 * (len(first_token_s) - 1))], 1),
        "cached_tokens": cached,
        "prompt_tokens": asked,
    }


def measure(kind: str, arguments: list[str], run: Path) -> dict[str, Any]:
    recorder = [sys.executable, "-m", "kvtrace", "record", "--force", "-o", str(run), "--kv-level", "host", "--"]
    command = [*recorder, sys.executable, __file__, *arguments, "--one", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the {kind!r} run failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def account(kind: str, run: Path) -> None:
    import kvtrace

    done = subprocess.run(
        [sys.executable, "-m", "kvtrace", "ingest", str(run)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"ingest of the {kind!r} run failed:\n{done.stderr[-2000:]}")
    with kvtrace.open(run / "trace.duckdb") as trace:
        for query in ("pinned-blocks", "pin-forced"):
            rows = trace.query(query)
            print(f"-- {kind}: {query}\n{rows.to_string(index=False) if len(rows) else '(nothing)'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1024, help="new prompt tokens a turn")
    parser.add_argument("--outputs", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=2048)
    parser.add_argument("--memory", type=float, default=0.7, help="vLLM's gpu_memory_utilization")
    parser.add_argument("--threshold", type=float, default=2.0)
    parser.add_argument("--ttl", type=float, default=2.0)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.mkdtemp()))
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asyncio.run(one(options))), flush=True)
        return
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    for kind in KINDS:
        print(f"{kind:>5}", json.dumps(measure(kind, sys.argv[1:], options.keep / kind)), flush=True)
        account(kind, options.keep / kind)


if __name__ == "__main__":
    main()
