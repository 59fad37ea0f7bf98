"""On a GPU: what recording tiles costs vLLM's Triton kernels by themselves, by part. No engine.

    python bench/tile_kernels.py [KIND...] [REGISTERS...] [nTHREADS...] [cold]

Decode batches of the Llama-3.1-8B shape (32 query and 8 KV heads of 128, blocks of 16) and a prefill of 16 prompts of
512 tokens, a CUDA graph of 32 calls replayed; microseconds a call, median of 21 rounds, kinds alternating. `off`:
vLLM's kernels; `recorded`: rewritten; `filtered`: the same in a step that is not recorded (out of a graph such a step
launches vLLM's own); `windows`: no tiles, only the layer's window; the others leave out or move a part of what
rewriting adds. Attention is held to the registers of vLLM's own where an engine's would be (`any registers`: it is
not). Numbers as arguments: each named kind held to those, too; with an n, by a block of so many threads, which only the
compiler is told of. Names as arguments: only these kinds, beside `off`. With `cold` 128 MiB pass through the L2 cache
in front of each call, as weights do in an engine, and the time of that is taken off.
"""

from __future__ import annotations

import re
import statistics
import sys

import torch
from vllm.v1.attention.ops import triton_reshape_and_cache_flash as writes
from vllm.v1.attention.ops import triton_unified_attention as reads

from kvtrace.probes.device.tiles import launch, rewrite
from kvtrace.probes.device.tiles.layout import WINDOW_WORDS
from kvtrace.probes.device.tiles.ring import Ring

HEADS, KV_HEADS, SIZE, BLOCK, CALLS = 32, 8, 128, 16, 32
SHAPES = (8, 1, 576), (32, 1, 576), (100, 1, 576), (200, 1, 800), (256, 1, 576), (256, 1, 96), (16, 512, 512)
"""Sequences, tokens computed of each, and its tokens with them."""


def without(*lines: str):
    """Attention's rewriting, less the statements that begin so."""

    def rewriting(source: str) -> str:
        text = rewrite.attention(source)
        for line in lines:
            text, count = re.subn(rf"(?m)^(\s*){re.escape(line)}.*$", r"\1pass", text)
            assert count, line
        return text

    return rewriting


KINDS = {
    "off": None,
    "recorded": rewrite.attention,
    "no K times": without("kvt_key_time = kvt_key_now("),
    "no V times": without("kvt_since = kvt_value(", "kvt_value("),
    "no times": without("kvt_since = kvt_value(", "kvt_value(", "kvt_key_time = kvt_key_now("),
    "no blocks": lambda source: re.sub(r"if kvt_what >> 8 & 255 == .*:", "if False:", rewrite.attention(source)),
    "no record": without("kvt_end("),
    "any registers": rewrite.attention,
    "windows": rewrite.attention,
}


class Limited:
    """A kernel held to so many registers a thread (`80`), or to as many as a block of so many threads has (`n768`)."""

    def __init__(self, kernel, limit):
        self.kernel = kernel
        self.options = {"maxnreg": int(limit)} if limit.isdigit() else launch.by_block(int(limit[1:]))

    def run(self, *args, **kwargs):
        return self.kernel.run(*args, **self.options, **kwargs)


def main() -> None:
    limits = [argument for argument in sys.argv[1:] if re.fullmatch(r"n?\d+", argument)]
    named = set(sys.argv[1:]) - {*limits, "cold"} or set(KINDS)
    weights = weights_of_a_layer() if "cold" in sys.argv[1:] else None
    ring = Ring(1 << 30)
    tiles = launch.Current(ring.control, -1)
    windows = launch.Current(None, windows=torch.zeros(WINDOW_WORDS, dtype=torch.int64, device="cuda"))
    stream = torch.cuda.Stream()
    original = reads.kernel_unified_attention
    original_write = writes.reshape_and_cache_kernel_flash
    for sequences, queries, context in SHAPES:
        read, write = batch(sequences, queries, context)
        graphs, rounds = {}, {}
        kinds = {name: rewriting for name, rewriting in KINDS.items() if name in named | {"off"}}
        kinds |= {f"{kind}, {limit}": kinds[kind] for limit in limits for kind in named - {"off", "any registers"}}
        for kind, rewriting in kinds.items():
            limit = kind.rpartition(", ")[2]
            current = windows if kind.startswith("windows") else tiles
            current.what = 1 << 8 if current is tiles else 0
            if kind == "off":
                reads.kernel_unified_attention = original
            elif limit in limits:
                rewritten = Limited(launch.load(original, rewriting), limit)
                reads.kernel_unified_attention = launch.Rewritten(original, rewritten, current, fail)
            else:
                rewritten = launch.load(original, rewriting)
                held = kind != "any registers"
                compilation = launch.Compilation(original, rewritten, tiles=current is tiles) if held else None
                reads.kernel_unified_attention = launch.Rewritten(original, rewritten, current, fail, compilation)
            graphs[kind] = captured(read, stream, weights)
        for kind in ("write off", "write recorded", "write windows"):
            current = windows if kind == "write windows" else tiles
            if kind != "write off":
                rewritten = launch.load(original_write, rewrite.cache_write)
                writes.reshape_and_cache_kernel_flash = launch.Rewritten(original_write, rewritten, current, fail)
            else:
                writes.reshape_and_cache_kernel_flash = original_write
            graphs[kind] = captured(write, stream, weights)
        alone = captured(lambda: None, stream, weights) if weights else None
        for _ in range(21):
            taken_off = timed(alone, ring, stream, enabled=False) if alone else 0.0
            for kind, graph in graphs.items():
                rounds.setdefault(kind, []).append(timed(graph, ring, stream) - taken_off)
                if kind in ("recorded", "any registers", "write recorded"):
                    rounds.setdefault(f"{kind}, filtered", []).append(
                        timed(graph, ring, stream, enabled=False) - taken_off
                    )
        for kind, values in rounds.items():
            base = rounds["write off" if "write" in kind else "off"]
            ratio = statistics.median(v / b for v, b in zip(values, base, strict=True))
            print(
                f"{sequences:4} x {queries:3} x {context:3} {kind:22} {statistics.median(values):8.2f} us  {ratio:.3f}",
                flush=True,
            )


def fail(why: str) -> None:
    raise SystemExit(why)


def batch(sequences: int, queries: int, context: int):
    blocks = context // BLOCK + 1
    tokens = sequences * queries
    cache = torch.randn(sequences * blocks, KV_HEADS, BLOCK, 2 * SIZE, dtype=torch.bfloat16, device="cuda")
    keys, values = cache.transpose(1, 2).split(SIZE, dim=-1)
    query = torch.randn(tokens, HEADS, SIZE, dtype=torch.bfloat16, device="cuda")
    output = torch.empty_like(query)
    tables = torch.randperm(sequences * blocks, device="cuda", dtype=torch.int32).reshape(sequences, blocks)
    lengths = torch.full((sequences,), context, dtype=torch.int32, device="cuda")
    starts = queries * torch.arange(sequences + 1, dtype=torch.int32, device="cuda")
    partial = torch.empty(sequences, HEADS, 16, SIZE, device="cuda")
    peaks, sums = (torch.empty(sequences, HEADS, 16, device="cuda") for _ in range(2))
    one = torch.ones(1, device="cuda")

    def read() -> None:
        reads.unified_attention(
            q=query, k=keys, v=values, out=output, cu_seqlens_q=starts, max_seqlen_q=queries, seqused_k=lengths,
            max_seqlen_k=context, softmax_scale=SIZE**-0.5, causal=True, window_size=(-1, -1), block_table=tables,
            softcap=0, q_descale=None, k_descale=one.expand(sequences, KV_HEADS),
            v_descale=one.expand(sequences, KV_HEADS), seq_threshold_3D=16, num_par_softmax_segments=16,
            softmax_segm_output=partial, softmax_segm_max=peaks, softmax_segm_expsum=sums,
        )  # fmt: skip

    new = torch.randn(2, tokens, KV_HEADS, SIZE, dtype=torch.bfloat16, device="cuda")
    positions = torch.arange(context - queries, context, device="cuda")
    slots = (tables[:, positions // BLOCK].long() * BLOCK + positions % BLOCK).flatten()

    def write() -> None:
        writes.triton_reshape_and_cache_flash(new[0], new[1], keys, values, slots, "auto", one, one)

    return read, write


def weights_of_a_layer():
    """Return what leaves nothing in the L2 cache that was there."""
    weights = torch.zeros(32 << 20, device="cuda")
    return lambda: weights.add_(1)


def captured(call, stream, weights=None):
    with torch.cuda.stream(stream):
        call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(CALLS):
                if weights:
                    weights()
                call()
    return graph


def timed(graph, ring: Ring, stream, *, enabled: bool = True) -> float:
    """Microseconds a call."""
    return [replayed_us(graph, ring, stream, enabled=enabled) for _ in range(3)][-1] / CALLS


def replayed_us(graph, ring: Ring, stream, *, enabled: bool) -> float:
    """Replay a graph as a step, which is recorded if `enabled`, and give its places back. Returns what it took."""
    with torch.cuda.stream(stream):
        if enabled:
            ring.open(stream.cuda_stream, enabled=True)
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        graph.replay()
        after.record()
        if enabled:
            ring.close(1, stream.cuda_stream)
        stream.synchronize()
        published = int(ring.published[0])
        step = ring.steps[(published - 1) % 1024]
        for section in range(3):
            ring.released[section] = step[4 + section] + step[8 + section]
        ring.released[3] = published
    return 1000 * before.elapsed_time(after)


if __name__ == "__main__":
    main()
