"""Time and memory of exporting a trace with many kernels.

    python bench/export.py [--kernels 5000000] [--kind perfetto]

The trace is synthetic: steps of 1,000 kernels each on one stream, launched by four graph launches, 32 requests in every
step. Times include reading; memory is the process's own peak after the trace was made, DuckDB's included.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb

from kvtrace.ingest.schema.trace import TRACE_VERSION, create_schema

EPOCH_NS = 1_700_000_000_000_000_000
KERNELS_OF_STEP = 1000
NAMES = 100
REQUESTS = 32


def build(path: Path, kernels: int) -> None:
    steps = max(1, kernels // KERNELS_OF_STEP)
    with duckdb.connect(str(path)) as con:
        create_schema(con)
        con.execute("SET memory_limit = '4GB'")
        for statement in f"""
            INSERT INTO run VALUES ('trace_version', '{TRACE_VERSION}'), ('source', 'bench/export.py: synthetic');
            INSERT INTO process (process_id, roles, host, pid) VALUES (1, 'engine', 'h', 10), (2, 'worker', 'h', 11);
            INSERT INTO engine (engine_id, model, blocks) VALUES (1, 'synthetic', 1000);
            INSERT INTO gpu_process VALUES (1, 11, 2, 'pid');
            INSERT INTO step_schedule BY NAME SELECT 1 AS engine_id, {EPOCH_NS} + i * 10000000 AS start_ns,
                {EPOCH_NS} + i * 10000000 + 200000 AS scheduled_ns, i AS step, {REQUESTS} AS running, 0 AS waiting,
                0 AS prefill_requests, 0 AS prefill_tokens, 0 AS chunked_prefill_requests, 0 AS chunked_prefill_tokens,
                {REQUESTS} AS decode_requests, {REQUESTS} AS decode_tokens, 0 AS resumed_requests, 0 AS resumed_tokens,
                2048 AS budget_tokens, 2016 AS budget_left_tokens, 500 AS free_blocks, 500 AS used_blocks,
                600 AS cached_blocks, 0 AS preempted_requests, 'none' AS admission_limit FROM range({steps}) t(i);
            INSERT INTO step_update BY NAME SELECT engine_id, start_ns + 9500000 AS update_ns,
                start_ns + 9800000 AS end_ns, step, {REQUESTS} AS output_tokens, 0 AS finished_requests
                FROM step_schedule;
            INSERT INTO step_request BY NAME SELECT 1 AS engine_id, step, r AS request, 'decode' AS phase,
                1 AS scheduled_tokens, step AS computed_tokens, 0 AS new_blocks
                FROM step_schedule, range({REQUESTS}) t(r);
            INSERT INTO request BY NAME SELECT r AS request, 1 AS engine_id, concat('request-', r) AS external_id,
                {EPOCH_NS} AS queued_ns FROM range({REQUESTS}) t(r);
            INSERT INTO kernel_name (kernel_name_id, source_id, short_name, category)
                SELECT i, 1, concat('kernel_', i, '_of_some_usual_length'), 'gemm' FROM range({NAMES}) t(i);
            INSERT INTO gpu_call BY NAME SELECT 4 * step + c AS call_id, 1 AS source_id, 'runtime' AS api,
                start_ns + 300000 + c * 50000 AS start_ns, start_ns + 340000 + c * 50000 AS end_ns, 11 AS pid,
                11 AS tid, 'cudaGraphLaunch' AS name, 4 * step + c AS correlation FROM step_schedule, range(4) t(c);
            INSERT INTO gpu_activity BY NAME SELECT k AS activity_id, 1 AS source_id, 'kernel' AS kind,
                {EPOCH_NS} + k * 9000 + 500000 AS start_ns, {EPOCH_NS} + k * 9000 + 508000 AS end_ns, 11 AS pid,
                0 AS device, 7 AS stream, k % {NAMES} AS kernel_name_id FROM range({kernels}) t(k);
            INSERT INTO gpu_attribution BY NAME SELECT k AS activity_id,
                4 * (k // {KERNELS_OF_STEP}) + k % 4 AS call_id, 1 AS engine_id, k // {KERNELS_OF_STEP} AS step,
                'nvtx_forward' AS method FROM range({kernels}) t(k);
        """.split(";\n"):
            con.execute(statement)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, default=5_000_000)
    parser.add_argument("--kind", choices=("perfetto", "parquet", "csv", "otlp"), default="perfetto")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace, output = Path(folder) / "trace.duckdb", Path(folder) / "out"
        build(trace, options.kernels)
        started = time.perf_counter()
        command = [sys.executable, "-m", "kvtrace", "export", str(trace), f"--{options.kind}", str(output)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        wall = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        files = [output] if output.is_file() else [path for path in output.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        rows = sum(int(line.split()[-1].replace(",", "")) for line in done.stdout.splitlines() if line.startswith("  "))
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{options.kind}: {rows:,} rows in {wall:.1f} s ({cpu:.1f} s of CPU), {rows / wall:,.0f} rows/s")
        print(f"{size / 1e6:,.0f} MB in {len(files)} files, peak memory {after.ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
