"""What recording costs a real engine on the CPU.

Recording: one engine, whose hooks are taken out and put back batch by batch, so that pairs of batches differ in nothing
else. Installed but off: engines with and without kvtrace's entry point, each forked from one process that has imported
vLLM. Frontend, engine and worker share a process and a thread, so the cost of every hook is on the engine's path.

    python bench/throughput.py [PAIRS] [SECONDS]
    python bench/throughput.py 150 1 CONNECTOR     # offloading or simple-cpu: recording only

With a connector (vLLM's own; the tests' stand-ins copy between CPU tensors) the prompts of four batches come again and
again: a batch finds its prefixes in the tier, for the pool holds less than two batches. Their loads fall into few steps
or into many, so single pairs differ by a quarter: it takes many.

Figures are given by wall time, and by the process's CPU time, which other load on the machine disturbs less.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODEL = Path(__file__).parent.parent / "examples" / "tiny-llama"
CONNECTORS = ("offloading", "simple-cpu")
TIER_BYTES, RETURN_AFTER = 256 << 20, 4
Figures = list[tuple[float, float]]


def engine(connector: str = "") -> Callable[[], int]:
    """A fresh engine in this process; a function that runs a batch on it and returns its tokens."""
    from vllm import LLM, SamplingParams

    more = with_tier(connector) if connector else {}
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
        **more,
    )
    parameters = SamplingParams(max_tokens=64, ignore_eos=True, detokenize=False)
    number = 0

    def batch() -> int:
        nonlocal number
        number += 1
        prompt = number % RETURN_AFTER if connector else number
        prompts = [
            {"prompt_token_ids": [7] * 64 + [(prompt * 31 + session * 7 + i) % 500 for i in range(64)]}
            for session in range(32)
        ]
        outputs = llm.generate(prompts, parameters, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    batch()
    return batch


def with_tier(connector: str) -> dict[str, Any]:
    """Engine arguments: the tests' variant with that connector, its tier so large that it holds everything."""
    root = Path(__file__).parent.parent
    sys.path[:0] = [str(root), str(root / "tests" / "vllm" / "offload")]
    from tests.vllm.faults.variants import variants

    os.environ["KVTRACE_TEST_SPEC_LOG"] = os.devnull
    arguments = variants(root)[connector].engine
    arguments["kv_transfer_config"]["kv_connector_extra_config"]["cpu_bytes_to_use"] = TIER_BYTES
    return arguments


def rate(batch: Callable[[], int], seconds: float) -> tuple[float, float]:
    """Tokens/s by wall and by CPU time."""
    tokens = 0
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        tokens += batch()
    return tokens / (time.perf_counter() - wall), tokens / (time.process_time() - cpu)


def recording_pairs(pairs: int, seconds: float, connector: str = "") -> dict[str, Figures]:
    """Batches with the hooks out and in, in turns, on one engine."""
    from kvtrace.layout import RUN_DIR_VARIABLE
    from kvtrace.probes import plugin
    from kvtrace.probes.connectors.part import Part

    on_connectors: list[Callable[[], Any]] = []  # hooks on objects, which `install` does not put back
    Part.hook = remembered(Part.hook, on_connectors)
    Part.hook_function = remembered(Part.hook_function, on_connectors)
    with tempfile.TemporaryDirectory() as run_dir:
        os.environ[RUN_DIR_VARIABLE] = run_dir
        plugin.load()
        patches: Any = plugin._patches
        batch = engine(connector)
        figures: dict[str, Figures] = {"off": [], "recording": []}
        for pair in range(pairs):
            for kind in list(figures) if pair % 2 == 0 else list(figures)[::-1]:
                patches.uninstall()
                if kind == "recording":
                    patches.install(patches.hooks)
                    for hook in on_connectors:
                        hook()
                batch()
                figures[kind].append(rate(batch, seconds))
        return figures


def remembered(method: Callable[..., Any], calls: list[Callable[[], Any]]) -> Callable[..., Any]:
    """A method that keeps its calls, to be made again."""

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(functools.partial(method, *args, **kwargs))
        return method(*args, **kwargs)

    return call


def fresh_engine(kind: str, seconds: float) -> dict[str, Figures]:
    """An engine that loads kvtrace's entry point with nothing to record, or none."""
    if kind == "installed":
        from kvtrace.probes import plugin

        plugin.load()
    return {kind: [rate(engine(), seconds)]}


def in_child(measure: Callable[[], dict[str, Figures]]) -> dict[str, Figures]:
    """Fork, measure, bring the figures back."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.write(writer, json.dumps(measure()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        figures = answer.read()
    os.waitpid(pid, 0)
    if not figures:
        raise SystemExit("a measurement failed")
    return {kind: [(wall, cpu) for wall, cpu in values] for kind, values in json.loads(figures).items()}


def report(figures: dict[str, Figures]) -> None:
    """Print medians, and the ratios of pairs: their median, between which two of them it is with 95%, the range."""
    base = next(iter(figures.values()))
    for column, unit in enumerate(("tokens/s", "tokens/CPU s")):
        for kind, values in figures.items():
            ratios = sorted(value[column] / first[column] for value, first in zip(values, base, strict=True))
            low = max(0, math.floor((len(ratios) - 1.96 * math.sqrt(len(ratios))) / 2))  # as many are above as below
            print(
                f"{kind:10} {unit:>13} {statistics.median(value[column] for value in values):8.0f} "
                f"{statistics.median(ratios):14.3f} {ratios[low]:8.3f}-{ratios[-1 - low]:.3f} "
                f"{ratios[0]:8.3f}-{ratios[-1]:.3f}",
                flush=True,
            )


def prepare(connector: str) -> None:
    """Choose how engines of this process and its children run, before vLLM is imported."""
    if connector and connector not in CONNECTORS:
        raise SystemExit(f"{connector}: not one of {', '.join(CONNECTORS)}")
    os.environ.update(
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_LOGGING_LEVEL="ERROR",
        VLLM_PLUGINS="",  # loaded by hand, or not at all
        OMP_NUM_THREADS="1",
    )


def main(pairs: int = 7, seconds: float = 5, connector: str = "") -> None:
    prepare(connector)
    import vllm.entrypoints.llm  # noqa: F401 - once, before the forks

    print(f"{'':10} {'':>13} {'median':>8} {'ratio, median':>14} {'95%':>14} {'range':>14}")
    report(in_child(lambda: recording_pairs(pairs, seconds, connector)))
    if connector:
        return
    installed: dict[str, Figures] = {"without": [], "installed": []}
    for pair in range(pairs):
        for kind in list(installed) if pair % 2 == 0 else list(installed)[::-1]:
            installed[kind] += in_child(lambda kind=kind: fresh_engine(kind, seconds))[kind]  # type: ignore[misc]
    report(installed)


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((int, float, str), sys.argv[1:], strict=False)))
