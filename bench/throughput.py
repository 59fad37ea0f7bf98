"""Cost of recording to a real engine on the CPU.

Recording: one engine, whose hooks do their part or are passed by, batch by batch; passing them by costs as much as
choosing to have them do it. And engines made for it, two at once: with kvtrace's entry point and nothing to record, and
recording, each beside one without kvtrace. All are forked from one process that has imported vLLM. Frontend, engine and
worker share a process and a thread, so the cost of every hook is on the engine's path.

    python bench/throughput.py [PAIRS [FRESH]]
    python bench/throughput.py 60 0 CONNECTOR     # offloading or simple-cpu: four batches at a time, one engine

With a connector (vLLM's own; the tests' stand-ins copy between CPU tensors) the prompts of four batches come again and
again: a batch finds its prefixes in the tier, for the pool holds less than two batches.

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
BATCHES_OF_FRESH = 12
_END = b"."
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


def rate(batch: Callable[[], int], batches: int) -> tuple[float, float]:
    """Tokens/s by wall and by CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = sum(batch() for _ in range(batches))
    return tokens / (time.perf_counter() - wall), tokens / (time.process_time() - cpu)


def recording_pairs(pairs: int, connector: str = "") -> dict[str, Figures]:
    """Batches whose hooks do their part, and batches whose hooks are passed by, in turns, on one engine."""
    recording = record_selectably()
    batch = engine(connector)
    figures: dict[str, Figures] = {"off": [], "recording": []}
    for pair in range(pairs):
        for kind in list(figures) if pair % 2 == 0 else list(figures)[::-1]:
            recording[0] = kind == "recording"
            figures[kind].append(rate(batch, RETURN_AFTER if connector else 1))
    return figures


def record_selectably() -> list[bool]:
    """Record this process; hooks do their part while the one item is true, and are passed by otherwise."""
    from kvtrace.format.layout import RUN_DIR_VARIABLE
    from kvtrace.probes import hooks, plugin

    recording = [True]
    hooks.wrap = selectable(hooks.wrap, recording)
    os.environ[RUN_DIR_VARIABLE] = tempfile.mkdtemp()
    plugin.load()
    return recording


def selectable(wrap: Callable[..., Any], recording: list[bool]) -> Callable[..., Any]:
    """`kvtrace.probes.hooks.wrap`, whose wrappers call the original and nothing else where it is not recorded.

    Taking the hooks out and putting them back changes the classes they are in each time, and no user's engine does
    that. The choice costs the same both ways.
    """

    def wrap_both(original: Callable[..., Any], hook: Any, report: Any) -> Callable[..., Any]:
        hooked = wrap(original, hook, report)

        @functools.wraps(original)
        def chosen(*args: Any, **kwargs: Any) -> Any:
            return hooked(*args, **kwargs) if recording[0] else original(*args, **kwargs)

        return chosen

    return wrap_both


class Child:
    """A forked process that answers with what a function says; `make` makes the function there."""

    def __init__(self, make: Callable[[], Callable[[], Any]]) -> None:
        questions, self._questions = os.pipe()
        self._answers, answers = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            with contextlib.suppress(BaseException):
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                answer = make()
                os.write(answers, b"ready\n")
                while os.read(questions, 1) != _END:
                    os.write(answers, json.dumps(answer()).encode() + b"\n")
            os._exit(0)
        os.close(questions)
        os.close(answers)

    def wait(self) -> None:
        """Until the function is made."""
        self._line()

    def ask(self) -> None:
        """Have it begin."""
        os.write(self._questions, b"?")

    def answer(self) -> Any:
        """Wait for what it says."""
        return json.loads(self._line())

    def _line(self) -> bytes:
        text = b""
        while not text.endswith(b"\n"):
            more = os.read(self._answers, 1 << 16)
            if not more:
                raise SystemExit("a measurement failed")
            text += more
        return text

    def end(self) -> None:
        """Have it end, and wait for it."""
        os.write(self._questions, _END)  # closing the pipe is not enough: children forked later have it, too
        os.waitpid(self._pid, 0)
        os.close(self._questions)
        os.close(self._answers)


def fresh_engine(kind: str) -> Callable[[], tuple[float, float]]:
    """Measures an engine of a process that loads kvtrace's entry point, with a recording or without, or does not."""
    if kind != "without":
        from kvtrace.format.layout import RUN_DIR_VARIABLE
        from kvtrace.probes import plugin

        if kind == "recording":
            os.environ[RUN_DIR_VARIABLE] = tempfile.mkdtemp()
        plugin.load()
    batch = engine()
    return lambda: rate(batch, BATCHES_OF_FRESH)


def fresh_pairs(pairs: int, kind: str) -> dict[str, Figures]:
    """Engines that are made and measured two at once: one without kvtrace, and one of a kind."""
    figures: dict[str, Figures] = {"without": [], kind: []}
    for pair in range(pairs):
        kinds = list(figures) if pair % 2 == 0 else list(figures)[::-1]
        children = [(each, Child(functools.partial(fresh_engine, each))) for each in kinds]
        for _, child in children:
            child.wait()
        for _, child in children:
            child.ask()
        for each, child in children:
            figures[each].append(child.answer())
        for _, child in children:
            child.end()
    return figures


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


def main(pairs: int = 200, fresh: int = 7, connector: str = "") -> None:
    prepare(connector)
    import vllm.entrypoints.llm  # noqa: F401 - once, before the forks

    print(f"{'':10} {'':>13} {'median':>8} {'ratio, median':>14} {'95%':>14} {'range':>14}")
    whole = Child(lambda: functools.partial(recording_pairs, pairs, connector))
    whole.wait()
    whole.ask()
    report(whole.answer())
    whole.end()
    for kind in ("installed", "recording") if fresh and not connector else ():
        report(fresh_pairs(fresh, kind))


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((int, int, str), sys.argv[1:], strict=False)))
