"""Time and memory of ingesting a PyTorch profiler's JSON trace.

    python bench/torch_trace.py                          # generates 562 MB first, beside --where
    python bench/torch_trace.py --trace FILE --rounds 3  # a trace of your own

Time is wall and CPU time of `kvtrace ingest --torch-trace` from start to end, memory its peak.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from nsight import measure

PID, THREAD, STREAM = 4242, 4243, 7
KERNELS_A_STEP = 160
NAMES = (
    "nvjet_sm90_tst_64x32_64x16_4x1_v_bz_TNT",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, T1, T2)",
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(const T1 *, const T1 *, T2 *, T2 *)",
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<CollectiveMainloop>>>(T1::Params)",
)
HEAD = (
    '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],\n'
    '"baseTimeNanoseconds": 1790000000000000000, "displayTimeUnit": "ms", "traceEvents": [\n'
)
CALL = (
    '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": %(pid)d, "tid": %(thread)d, "ts": %(at).3f, "dur": 9.500, '
    '"args": {"External id": %(n)d, "Record function id": 0, "Concrete Inputs": ["", ""], "Ev Idx": %(n)d}},\n'
    '{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": %(pid)d, "tid": %(thread)d, '
    '"ts": %(call).3f, "dur": 4.250, "args": {"External id": %(n)d, "cbid": 211, "correlation": %(n)d}},\n'
    '{"ph": "s", "id": %(n)d, "pid": %(pid)d, "tid": %(thread)d, "ts": %(call).3f, "cat": "ac2g", "name": "ac2g"},\n'
    '{"ph": "X", "cat": "kernel", "name": "%(name)s", "pid": 0, "tid": %(stream)d, "ts": %(run).3f, "dur": 7.125, '
    '"args": {"External id": %(n)d, "queued": 0, "device": 0, "context": 1, "stream": %(stream)d, '
    '"correlation": %(n)d, "registers per thread": 168, "shared memory": 213504, "blocks per SM": 0.969697, '
    '"warps per SM": 11.636364, "grid": [128, 1, 1], "block": [384, 1, 1], "est. achieved occupancy %%": 18}},\n'
    '{"ph": "f", "id": %(n)d, "pid": 0, "tid": %(stream)d, "ts": %(run).3f, "cat": "ac2g", "name": "a", "bp": "e"},\n'
)


def make(path: Path, size_bytes: int) -> int:
    """Write an operator, its launch and its kernel, over and over, to about so many bytes; returns how often."""
    number, written = 0, 0
    with path.open("w") as file:
        file.write(HEAD)
        while written < size_bytes:
            number += 1
            at = number * 10.0 + number // KERNELS_A_STEP * 50
            written += file.write(
                CALL
                % {"pid": PID, "thread": THREAD, "stream": STREAM, "n": number, "name": NAMES[number % len(NAMES)],
                   "at": at, "call": at + 3, "run": at + 20}
            )  # fmt: skip
        file.write(f'{{"ph": "M", "name": "process_name", "pid": {PID}, "ts": 0, "args": {{"name": "python"}}}}\n]}}\n')
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, help="ingest this trace instead of a generated one")
    parser.add_argument("--megabytes", type=int, default=562)
    parser.add_argument("--where", type=Path, help="directory for the generated trace and what is made of it")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.where) as name:
        folder = Path(name)
        trace = options.trace
        if trace is None:
            trace = folder / "generated.json"
            print(f"{make(trace, options.megabytes * 1_000_000):,} kernels")
        print(f"{trace.name}: {trace.stat().st_size / 1e6:,.0f} MB")
        print(f"{'':>8} {'wall s':>7} {'CPU s':>7} {'peak MB':>8} {'load':>5}", flush=True)
        for _ in range(options.rounds):
            made = str(folder / "trace.duckdb")
            measure("kvtrace", [sys.executable, "-m", "kvtrace", "ingest", "--torch-trace", str(trace), "-o", made])


if __name__ == "__main__":
    main()
