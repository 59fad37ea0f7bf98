"""Makes an Nsight Systems export of any size: `python bench/nsight_export.py FILE --kernels 5000000`.

A decode-only server on one GPU: steps of a forward pass and a sampling, one call a kernel, and kvtrace's NVTX ranges.
Every number is made up; only the schema and the proportions are those of a real export (2025.5).
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

PID, TID = 4242, 4243
GLOBAL_PID = (1 << 48) | (PID << 24)
GLOBAL_TID = GLOBAL_PID | TID
UTC_EPOCH_NS = 1_790_000_000_000_000_000
STEP_NS = 2_000_000
LAYERS = 16
LAYER_KERNELS = (
    "triton_red_fused_fused_add_rms_norm_0",
    "nvjet_sm90_tst_64x32_64x16_4x1_v_bz_TNT",
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(const T1 *, const T1 *, T2 *, T2 *)",
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<CollectiveMainloop>>>(T1::Params)",
    "nvjet_sm90_tst_128x32_64x10_2x1_v_bz_TNT",
)
OTHER_KERNELS = tuple(f"void at::native::elementwise_kernel<{n}>(int, T3)" for n in range(200))
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER, id INTEGER, name TEXT, busLocation TEXT, isDiscrete INTEGER,
    l2CacheSize INTEGER, totalMemory INTEGER, memoryBandwidth INTEGER, clockRate INTEGER, smCount INTEGER, uuid TEXT,
    chipName TEXT, computeMajor INTEGER, computeMinor INTEGER);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE ThreadNames (nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
    launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL,
    gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
    blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
    localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,
    sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER, qmdBulkReleaseDone INTEGER,
    qmdPreexitDone INTEGER, qmdLastCtaDone INTEGER, graphId INTEGER, clusterX INTEGER, clusterY INTEGER,
    clusterZ INTEGER, clusterSchedulingPolicy INTEGER, maxPotentialClusterSize INTEGER, maxActiveClusters INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
    callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
    domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER,
    int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT);
"""
NAMES = ("cudaLaunchKernel_v7000", "step", "forward", "sample", "kvtrace", "clock", *LAYER_KERNELS, *OTHER_KERNELS)
NAME_ID = {name: number for number, name in enumerate(NAMES, 1)}


def kernels(count: int, per_step: int) -> Iterator[tuple[object, ...]]:
    """Rows of KERNEL, and by position those of RUNTIME: kernel k runs 40 us after its call."""
    layered = [NAME_ID[name] for _ in range(LAYERS) for name in LAYER_KERNELS]
    tail = [NAME_ID[OTHER_KERNELS[n % len(OTHER_KERNELS)]] for n in range(per_step)]
    names = (layered + tail)[:per_step]
    gap = (STEP_NS - 400_000) // per_step
    for k in range(count):
        step, index = divmod(k, per_step)
        start = step * STEP_NS + 140_000 + index * gap
        name = names[index]
        yield (
            *(start, start + gap - 1500, 0, 1, 0, 7, k + 1, GLOBAL_PID, name, name, name, 1, 1, 64, 132, 1, 1, 128, 1),
            *(1, 0, 4096, 0, 250871808, k + 1, 65536, None, 0, None, None, None, None, 1, 1, 1, 0, 8, 66),
        )


def calls(count: int, per_step: int) -> Iterator[tuple[object, ...]]:
    """Rows of RUNTIME."""
    gap = (STEP_NS - 400_000) // per_step
    launch = NAME_ID["cudaLaunchKernel_v7000"]
    for k in range(count):
        step, index = divmod(k, per_step)
        start = step * STEP_NS + 100_000 + index * gap
        yield (start, start + 3_000, 0, GLOBAL_TID, k + 1, launch, 0, None)


def ranges(steps: int) -> Iterator[tuple[object, ...]]:
    """Rows of NVTX_EVENTS: the domain, then a range a step and, inside it, one a forward pass and one a sampling."""

    def row(kind: int, start: int, end: int | None, text: str | None, name: str | None, value: int | None) -> tuple:
        name_id = NAME_ID[name] if name else None
        nothing = (None,) * 6
        return (start, end, kind, None, None, None, text, GLOBAL_TID, None, name_id, 1, None, value, None, *nothing)

    yield row(75, 0, None, "kvtrace", None, None)
    for step in range(steps):
        start = step * STEP_NS
        yield row(59, start, start + STEP_NS - 10_000, None, "step", step + 1)
        yield row(59, start + 95_000, start + STEP_NS - 500_000, None, "forward", step + 1)
        yield row(59, start + STEP_NS - 490_000, start + STEP_NS - 20_000, None, "sample", step + 1)


def make(path: Path, count: int, range_count: int) -> None:
    """Write the export."""
    path.unlink(missing_ok=True)
    steps = max(1, range_count // 3)
    per_step = max(LAYERS * len(LAYER_KERNELS), -(-count // steps))
    steps = -(-count // per_step)
    with sqlite3.connect(path) as db:
        db.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA page_size = 4096;" + SCHEMA)
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", ((number, name) for name, number in NAME_ID.items()))
        facts = [("EXPORT_PRODUCT_VERSION", "2025.5.1.121"), ("EXPORT_SCHEMA_VERSION", "3.23.3")]
        db.executemany("INSERT INTO META_DATA_EXPORT VALUES (?, ?)", facts)
        db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", [UTC_EPOCH_NS])
        gpu = (0, 0, "Generated GPU", "0000:01:00.0", 1, 0, 0, 0, 0, 132, "", "GH100", 9, 0)
        db.execute(f"INSERT INTO TARGET_INFO_GPU VALUES ({', '.join('?' * len(gpu))})", gpu)
        db.execute("INSERT INTO PROCESSES VALUES (?, ?, 'server')", [GLOBAL_PID, PID])
        db.executemany(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * 38)})", kernels(count, per_step)
        )
        db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({','.join('?' * 8)})", calls(count, per_step))
        db.executemany(f"INSERT INTO NVTX_EVENTS VALUES ({','.join('?' * 20)})", ranges(steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--kernels", type=int, default=5_000_000)
    parser.add_argument("--ranges", type=int, default=110_000)
    arguments = parser.parse_args()
    make(arguments.file, arguments.kernels, arguments.ranges)
    sys.stdout.write(f"{arguments.file}: {arguments.file.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
