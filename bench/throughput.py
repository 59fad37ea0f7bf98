"""What recording costs a real engine: tokens/s without kvtrace, with it installed but off, and recording.

One process imports vLLM once and forks a child a measurement, so that each has an engine of its own and nothing but
kvtrace differs. Frontend, engine and worker share the child's one process, so the cost of every hook is on the engine's
path. `--cpu` counts the process's CPU time instead of wall time, which other load on the machine disturbs less.

    python bench/throughput.py [--cpu] [ROUNDS] [SECONDS]
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

MODEL = Path(__file__).parent.parent / "examples" / "tiny-llama"
CPU_TIME = "--cpu" in sys.argv
KINDS = ("without", "installed", "recording")


def measure(kind: str, seconds: float, run_dir: str) -> float:
    """Tokens/s of a fresh engine in this (forked) process."""
    from kvtrace.layout import RUN_DIR_VARIABLE
    from kvtrace.probes import plugin

    os.environ.pop(RUN_DIR_VARIABLE, None)
    if kind == "recording":
        os.environ[RUN_DIR_VARIABLE] = run_dir
    if kind != "without":
        plugin.load()
    os.environ["VLLM_PLUGINS"] = ""  # loaded above, or not at all

    from vllm import LLM, SamplingParams

    llm = LLM(
        str(MODEL),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        block_size=32,
        max_model_len=512,
        max_num_seqs=16,
        num_gpu_blocks_override=128,
        gpu_memory_utilization=0.1,
    )
    parameters = SamplingParams(max_tokens=64, ignore_eos=True, detokenize=False)

    clock = time.process_time if CPU_TIME else time.perf_counter

    def batch(number: int) -> int:
        prompts = [
            {"prompt_token_ids": [7] * 64 + [(number * 31 + session * 7 + i) % 500 for i in range(64)]}
            for session in range(32)
        ]
        outputs = llm.generate(prompts, parameters, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    batch(0)
    tokens, number, begun, start = 0, 0, time.perf_counter(), clock()
    while time.perf_counter() - begun < seconds:
        number += 1
        tokens += batch(number)
    return tokens / (clock() - start)


def in_child(kind: str, seconds: float) -> float:
    """Fork, measure, bring the figure back."""
    reader, writer = os.pipe()
    with tempfile.TemporaryDirectory() as run_dir:
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                log = os.open(os.devnull, os.O_WRONLY)
                os.dup2(log, 1)
                os.write(writer, json.dumps(measure(kind, seconds, run_dir)).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            figure = answer.read()
        os.waitpid(pid, 0)
    if not figure:
        raise SystemExit(f"the {kind!r} measurement failed")
    return float(json.loads(figure))


def main(rounds: int = 7, seconds: float = 6) -> None:
    os.environ.update(
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_LOGGING_LEVEL="ERROR",
        OMP_NUM_THREADS="1",
        VLLM_WORKER_MULTIPROC_METHOD="fork",
    )
    import vllm.entrypoints.llm  # noqa: F401 - once, before the forks

    figures: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for round_ in range(rounds):
        order = KINDS if round_ % 2 == 0 else KINDS[::-1]
        for kind in order:
            figures[kind].append(in_child(kind, seconds))
            print(f"round {round_ + 1}  {kind:10} {figures[kind][-1]:8.0f} tokens/s", flush=True)
    print(f"\n{'':10} {'tokens/s':>9} {'ratio, median':>14} {'lowest':>7} {'highest':>8}")
    for kind in KINDS:
        ratios = [figure / base for figure, base in zip(figures[kind], figures["without"], strict=True)]
        print(
            f"{kind:10} {statistics.median(figures[kind]):9.0f} {statistics.median(ratios):14.3f} "
            f"{min(ratios):7.3f} {max(ratios):8.3f}"
        )


if __name__ == "__main__":
    numbers = [text for text in sys.argv[1:] if text != "--cpu"]
    main(*(kind(text) for kind, text in zip((int, float), numbers, strict=False)))
