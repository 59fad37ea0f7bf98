"""On a GPU: what recording costs a real engine, untraced and recorded runs alternating, each in a process of its own.

    python bench/gpu.py MODEL_DIR [ROUNDS] [--keep FOLDER]

Prints tokens/s and inter-token latency at 32 and 256 sequences of 512 + 128 tokens. `--keep` leaves the last recording.
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

SEQUENCES = (32, 256)
PROMPT_TOKENS, OUTPUT_TOKENS, REPEATS = 512, 128, 3


def one(model: str) -> None:
    """Measure in this process; a JSON object on the last line of standard output."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=4096,
        max_num_seqs=max(SEQUENCES),
        gpu_memory_utilization=0.7,
        enable_prefix_caching=True,
    )
    parameters = SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True, detokenize=False)
    figures: dict[int, list[float]] = {}
    for sequences in SEQUENCES:
        for repeat in range(REPEATS + 1):
            prompts = [
                {"prompt_token_ids": [(i * 7 + j * (repeat + 1) + sequences) % 500 + 3 for j in range(PROMPT_TOKENS)]}
                for i in range(sequences)
            ]
            start = time.perf_counter()
            llm.generate(prompts, parameters, use_tqdm=False)
            if repeat:
                figures.setdefault(sequences, []).append(sequences * OUTPUT_TOKENS / (time.perf_counter() - start))
    print(json.dumps({str(sequences): statistics.median(values) for sequences, values in figures.items()}), flush=True)


def measure(kind: str, model: str, run: Path) -> dict[str, float]:
    command = [sys.executable, __file__, model, "--one"]
    if kind == "recording":
        command = [sys.executable, "-m", "kvtrace", "record", "--force", "-o", str(run), "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the {kind!r} run failed:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    if kind == "recording":
        print(done.stderr[-1500:], file=sys.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.mkdtemp()) / "run")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.model)
        return
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    figures: dict[str, list[dict[str, float]]] = {"without": [], "recording": []}
    for round_ in range(options.rounds):
        kinds = list(figures) if round_ % 2 == 0 else list(figures)[::-1]
        for kind in kinds:
            figures[kind].append(measure(kind, options.model, options.keep))
            print(f"round {round_ + 1}  {kind:10} {figures[kind][-1]}", flush=True)
    print(f"{'sequences':>9} {'without':>9} {'recording':>9} {'ratio, median':>14} {'lowest':>7} {'highest':>8}")
    for sequences in map(str, SEQUENCES):
        off, on = ([run[sequences] for run in figures[kind]] for kind in figures)
        ratios = [b / a for a, b in zip(off, on, strict=True)]
        print(
            f"{sequences:>9} {statistics.median(off):9.0f} {statistics.median(on):9.0f} "
            f"{statistics.median(ratios):14.3f} {min(ratios):7.3f} {max(ratios):8.3f}"
        )


if __name__ == "__main__":
    main()
