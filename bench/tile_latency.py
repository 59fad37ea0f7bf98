"""On a GPU: do a tile's times tell where its bytes came from? vLLM's rewritten attention over KV in L2 or in HBM.

    python -m bench.tile_latency

One decoding sequence of the Llama-3.1-8B shape, one program a KV head, nothing else on the GPU. Before each call the L2
cache is flushed and every other run of eight tiles is read into it. Prints the times of tiles from L2 and from HBM with
the kernel as vLLM compiles it and with its loads not pipelined (one stage), how often a tile from HBM took longer than
one from L2, and the latencies of single loads that a chain of dependent loads measures.
"""

from __future__ import annotations

import numpy as np
import torch
from vllm.v1.attention.ops import triton_unified_attention as reads

from bench.tile_kernels import BLOCK, HEADS, KV_HEADS, SIZE, fail
from kvtrace.ingest.derive.tile_columns import PROGRAM, TICK_NS
from kvtrace.probes.device.cuda import Module, count, pointer
from kvtrace.probes.device.tiles import launch, layout, rewrite
from kvtrace.probes.device.tiles.ring import Ring

CONTEXT, TOGETHER, CALLS = 4096, 8, 50
FLUSH_BYTES = 512 << 20

CHAIN = r"""
typedef unsigned long long u64;

// Follows `steps` indices from one to the next, past L1; leaves the nanoseconds it took.
extern "C" __global__ void kvt_chain(const unsigned int* next, u64* out, unsigned int steps) {
    unsigned int at = 0;
    u64 start, end;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start) :: "memory");
    for (unsigned int i = 0; i < steps; ++i)
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(at) : "l"(next + at) : "memory");
    asm volatile("{ .reg .pred p; setp.eq.u32 p, %1, 0xffffffff; @p trap; mov.u64 %0, %globaltimer; }"
                 : "=l"(end) : "r"(at) : "memory");
    out[0] = end - start;
    out[1] = at;
}
"""


class Staged:
    """A kernel compiled with a given number of stages, or with its own."""

    def __init__(self, kernel, stages: int | None):
        self._kernel = kernel
        self._more = {} if stages is None else {"num_stages": stages}

    def __getitem__(self, grid):
        start = self._kernel[grid]
        return lambda *args, **kwargs: start(*args, **{**kwargs, **self._more})


def main() -> None:
    flush = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    print_chain(flush)
    ring = Ring(256 << 20)
    current = launch.Current(ring.control, -1)
    current.what = 1 << 8
    original = reads.kernel_unified_attention
    rewritten = launch.load(original, rewrite.attention)
    for name, stages in (("as vLLM compiles it", None), ("not pipelined", 1)):
        reads.kernel_unified_attention = launch.Rewritten(original, Staged(rewritten, stages), current, fail)
        from_l2, from_hbm, tile_tokens = populations(ring, flush)
        longer = np.searchsorted(np.sort(from_l2), from_hbm).mean() / len(from_l2)
        quarters = [np.percentile(times, (25, 50, 75)).astype(int) for times in (from_l2, from_hbm)]
        print(
            f"{name}: tiles of {tile_tokens} tokens, K to K ns (25, 50, 75%): L2 {quarters[0]}, HBM {quarters[1]}; "
            f"median difference {quarters[1][1] - quarters[0][1]}; HBM longer than L2: {longer:.3f} "
            f"(n = {len(from_l2)}, {len(from_hbm)})"
        )


def populations(ring: Ring, flush: torch.Tensor) -> tuple[np.ndarray, np.ndarray, int]:
    """Nanoseconds from one tile's K to the next one's, of tiles whose K and V were in L2, and were not."""
    read, cache = attention()
    stream = torch.cuda.current_stream()
    for _ in range(3):
        taken(ring, read, stream)
    l2, hbm = [], []
    tokens = 0
    for call in range(CALLS):
        flush.add_(1)
        together = TOGETHER * 32 // BLOCK
        warm = (torch.arange(CONTEXT // BLOCK, device="cuda") // together + call) % 2 == 0
        cache[warm].sum().item()
        programs, ticks = taken(ring, read, stream)
        for program in programs:
            tokens = 16 << (int(program["flags"]) >> 2 & 15)
            times = ticks[int(program["place"]) :][: int(program["tiles"])].astype(int)
            between = TICK_NS * times[1:, 0]
            tile = np.arange(1, len(times))
            run = tile * tokens // BLOCK // together
            inner = (tile % TOGETHER > 2) & (tile % TOGETHER < TOGETHER - 2)  # away from where L2 and HBM meet
            is_warm = (run + call) % 2 == 0
            l2.append(between[is_warm & inner])
            hbm.append(between[~is_warm & inner])
    return np.concatenate(l2), np.concatenate(hbm), tokens


def taken(ring: Ring, read, stream) -> tuple[np.ndarray, np.ndarray]:
    """One recorded call: its programs, with the place of their first tile, and the ticks of all tiles."""
    ring.open(stream.cuda_stream, enabled=True)
    read()
    ring.close(1, stream.cuda_stream)
    stream.synchronize()
    step = ring.steps[(int(ring.published[0]) - 1) % 1024].numpy()
    if step[layout.STATE_WORD] != layout.RECORDED:
        raise SystemExit("the ring has no room")
    starts = [int(step[layout.START_WORD + section]) for section in range(3)]
    counts = [int(step[layout.COUNT_WORD + section]) for section in range(3)]
    raw = []
    for section, size in ((layout.PROGRAMS, PROGRAM.itemsize), (layout.TILES, 2)):
        at = starts[section] % ring.capacities[section] * size
        raw.append(ring.memory[section][at : at + counts[section] * size].cpu().numpy())
    first = (ring.memory[layout.TILES].data_ptr() >> 1) + starts[layout.TILES] % ring.capacities[layout.TILES]
    programs = raw[0].view(PROGRAM)
    found = np.zeros(len(programs), dtype=[*PROGRAM.descr, ("place", "<i8")])
    for name in PROGRAM.names:
        found[name] = programs[name]
    found["place"] = (programs["at"] - np.uint32(first & 0xFFFFFFFF)).astype(np.uint32)
    for section in range(3):
        ring.released[section] = starts[section] + counts[section]
    ring.released[3] = int(ring.published[0])
    return found, raw[1].reshape(-1, 2)


def attention():
    """A call for one sequence, and the KV cache it reads, block by block."""
    blocks = CONTEXT // BLOCK
    cache = torch.randn(blocks, KV_HEADS, BLOCK, 2 * SIZE, dtype=torch.bfloat16, device="cuda")
    keys, values = cache.transpose(1, 2).split(SIZE, dim=-1)
    query = torch.randn(1, HEADS, SIZE, dtype=torch.bfloat16, device="cuda")
    output = torch.empty_like(query)
    tables = torch.arange(blocks, device="cuda", dtype=torch.int32).reshape(1, blocks)
    lengths = torch.full((1,), CONTEXT, dtype=torch.int32, device="cuda")
    starts = torch.arange(2, dtype=torch.int32, device="cuda")
    one = torch.ones(1, device="cuda")

    def read() -> None:
        reads.unified_attention(
            q=query, k=keys, v=values, out=output, cu_seqlens_q=starts, max_seqlen_q=1, seqused_k=lengths,
            max_seqlen_k=CONTEXT, softmax_scale=SIZE**-0.5, causal=True, window_size=(-1, -1), block_table=tables,
            softcap=0, q_descale=None, k_descale=one.expand(1, KV_HEADS), v_descale=one.expand(1, KV_HEADS),
        )  # fmt: skip

    return read, cache


def print_chain(flush: torch.Tensor) -> None:
    """Latencies of single loads: a random chain through 32 MB, after a flush and again."""
    lines, steps = (32 << 20) // 128, 20_000
    order = torch.randperm(lines - 1, device="cuda") + 1
    order = torch.cat([torch.zeros(1, dtype=order.dtype, device="cuda"), order])
    next_ = torch.zeros(lines * 32, dtype=torch.int32, device="cuda")
    next_[order * 32] = (order.roll(-1) * 32).int()
    out = torch.zeros(2, dtype=torch.int64, device="cuda")
    chain = Module(CHAIN).launch("kvt_chain", 1, pointer(next_.data_ptr()), pointer(out.data_ptr()), count(steps))
    stream = torch.cuda.current_stream().cuda_stream
    found: dict[str, list[float]] = {"HBM": [], "L2": []}
    for _ in range(5):
        flush.add_(1)
        for times in found.values():
            chain(stream)
            torch.cuda.synchronize()
            times.append(int(out[0]) / steps)
    print("a dependent load:", ", ".join(f"{where} {np.median(values):.0f} ns" for where, values in found.items()))


if __name__ == "__main__":
    main()
