"""Measure what recording tiles costs FlashInfer's decodes by themselves: no engine, neither torch nor its JIT.

    python -m bench.flashinfer_decodes WHEEL -o FOLDER     # FlashInfer 0.7.2's wheel, unpacked; needs nvcc and no GPU
    python -m bench.flashinfer_decodes FOLDER              # needs a GPU of Hopper's

Compiles FlashInfer's kernel with its own headers (`own`) and with the rewritten ones (`recorded`), a quarter of a
minute each. Layers of Llama-3.1-8B's shape (32 query and 8 KV heads of 128, blocks of 16, 576 tokens a sequence) are
read once each in a CUDA graph of sixteen: microseconds a layer, medians of five runs of 60 rounds, in turns;
`left out`: rewritten, in a step that is not recorded. An output that differs ends it, and so do records that are not
those of the blocks that were read.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
from pathlib import Path

SEQUENCES = ("32", "256")
RUNS = 5
SOURCE = Path(__file__).with_suffix(".cu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="FlashInfer's wheel, unpacked; or what was compiled")
    parser.add_argument("-o", "--out", type=Path, help="compile into this folder")
    options = parser.parse_args()
    if options.out is None:
        run(options.folder)
        return
    from tests.probes.tiles import wheel  # needs kvtrace's compiled part, which is not where the GPU is

    options.out.mkdir(parents=True, exist_ok=True)
    own, rewritten = options.folder / wheel.DATA / "include", wheel.rewritten_headers(options.folder, options.out)
    for name, headers, defined in (("own", own, []), ("recorded", rewritten, ["-DREWRITTEN"])):
        told = [*wheel.arguments(options.folder, headers, options.folder / wheel.DATA / "csrc"), *defined]
        print(f"{name}: {compiled(told, options.out / name)} registers")


def compiled(told: list[str], out: Path) -> int:
    """Compile the program. Returns the registers of the kernel that reads tiles of 128 tokens."""
    command = ["nvcc", "-arch=sm_90a", *told, "-Xptxas", "-v"]
    done = subprocess.run([*command, str(SOURCE), "-o", str(out)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    kernel = r"Compiling entry function '\w*PagedKVCacheKernel\w*ELj16ELj1ELj2E"
    return int(re.findall(kernel + r".*(?:\n.*){3}Used (\d+) registers", done.stderr)[0])


def run(folder: Path) -> None:
    """Print a table."""
    found: dict[tuple[str, str], list[float]] = {}
    outputs: dict[str, set[str]] = {}
    for _ in range(RUNS):
        for name, program, settings in (
            ("own", "own", {}),
            ("recorded", "recorded", {}),
            ("left out", "recorded", {"LEFT_OUT": "1"}),
        ):
            command = [str(folder / program), name, *SEQUENCES]
            said = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
            if said.returncode:
                raise SystemExit(said.stderr)
            for sequences, line in zip(SEQUENCES, said.stdout.splitlines(), strict=True):
                took, output = re.findall(r"([\d.]+) us, output (\w+)", line)[0]
                found.setdefault((sequences, name), []).append(float(took))
                outputs.setdefault(sequences, set()).add(output)
    if any(len(each) > 1 for each in outputs.values()):
        raise SystemExit(f"outputs differ: {outputs}")
    for (sequences, name), values in found.items():
        took, own = statistics.median(values), statistics.median(found[sequences, "own"])
        print(f"{sequences:>4} sequences {name:10} {took:8.2f} us a layer  {took / own:.3f}")


if __name__ == "__main__":
    main()
