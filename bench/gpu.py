"""On a GPU: what recording costs a real engine. Untraced and recorded runs alternate, each in a process of its own.

    python bench/gpu.py MODEL_DIR [ROUNDS] [--kinds off,host,layer] [--graphs FULL_AND_PIECEWISE] [--keep RUN]
    python bench/gpu.py MODEL_DIR --backend TRITON_ATTN --kinds off,tile,tile+every=10

Prints tokens/s, and the 99th percentiles of TTFT and of the requests' mean inter-token latency, at 32 and 256 sequences
of 512 + 128 tokens, as medians and as ratios of runs next to each other. `--keep` leaves the last recording there. What
follows a + in a kind are options of `kvtrace record`. `--repeats` and `--sizes` change how many batches of which size.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SEQUENCES = (32, 256)
PROMPT_TOKENS, OUTPUT_TOKENS = 512, 128


def one(options: Any) -> None:
    """Measure in this process; a JSON object on the last line of standard output."""
    from vllm import LLM, SamplingParams

    backend = {"attention_backend": options.backend} if options.backend else {}
    llm = LLM(
        options.model,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=4096,
        max_num_seqs=max(SEQUENCES),
        gpu_memory_utilization=0.7,
        disable_log_stats=False,
        compilation_config={"cudagraph_mode": options.graphs},
        **backend,
    )
    parameters = SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True, detokenize=False)
    figures: dict[str, list[float]] = {}
    for sequences in map(int, options.sizes.split(",")):
        for repeat in range(options.repeats + 1):
            prompts = [
                {"prompt_token_ids": [(i * 7 + j * (repeat + 1) + sequences) % 500 + 3 for j in range(PROMPT_TOKENS)]}
                for i in range(sequences)
            ]
            start = time.perf_counter()
            outputs = llm.generate(prompts, parameters, use_tqdm=False)
            elapsed = time.perf_counter() - start
            if repeat:
                stats = [output.metrics for output in outputs]
                note(figures, f"{sequences} tokens/s", sequences * OUTPUT_TOKENS / elapsed)
                note(figures, f"{sequences} TTFT p99 ms", 1e3 * p99([s.first_token_latency for s in stats]))
                gaps = [(s.last_token_ts - s.first_token_ts) / (OUTPUT_TOKENS - 1) for s in stats]
                note(figures, f"{sequences} inter-token p99 ms", 1e3 * p99(gaps))
    print(json.dumps({name: statistics.median(values) for name, values in figures.items()}), flush=True)


def note(figures: dict[str, list[float]], name: str, value: float) -> None:
    figures.setdefault(name, []).append(value)


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


def measure(kind: str, options: Any) -> dict[str, float]:
    command = [sys.executable, __file__, options.model, "--one", "--graphs", options.graphs]
    command += ["--backend", options.backend, "--sizes", options.sizes, "--repeats", str(options.repeats)]
    level, *more = kind.split("+")
    if kind != "off":
        recorder = [sys.executable, "-m", "kvtrace", "record", "--force", "-o", str(options.keep), "--kv-level", level]
        command = [*recorder, *(f"--{option}" for option in more), "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the {kind!r} run failed:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    if kind != "off":
        print("\n".join(line for line in done.stderr.splitlines() if line.startswith("kvtrace:")), flush=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    parser.add_argument("--kinds", default="off,host,layer")
    parser.add_argument("--graphs", default="FULL_AND_PIECEWISE")
    parser.add_argument("--backend", default="", help="an attention backend, such as TRITON_ATTN")
    parser.add_argument("--sizes", default=",".join(map(str, SEQUENCES)))
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.mkdtemp()) / "run")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options)
        return
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    kinds = options.kinds.split(",")
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for round_ in range(options.rounds):
        for kind in kinds if round_ % 2 == 0 else kinds[::-1]:
            runs[kind].append(measure(kind, options))
            print(f"round {round_ + 1} {kind:6}", json.dumps(runs[kind][-1]), flush=True)
    print(f"{'':26}" + "".join(f"{kind:>28}" for kind in kinds))
    for name in runs[kinds[0]][0]:
        cells = []
        for kind in kinds:
            values = [run[name] for run in runs[kind]]
            ratios = [value / base[name] for value, base in zip(values, runs[kinds[0]], strict=True)]
            spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"
            cells.append(f"{statistics.median(values):9.1f}{spread:>19}")
        print(f"{name:26}" + "".join(cells))


if __name__ == "__main__":
    main()
