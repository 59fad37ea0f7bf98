"""On a GPU: what recording tiles costs FlashInfer's decodes by themselves. No engine.

    python -m bench.flashinfer_tiles [SEQUENCES...] [cold]

Decodes of the Llama-3.1-8B shape (32 query and 8 KV heads of 128, blocks of 16, 576 tokens a sequence), 16 layers
read once each in a CUDA graph; microseconds a layer, median of 15 rounds of 20 replays. `own`: FlashInfer's kernels,
twice; `recorded`: rewritten; `left out`: the same in a step that is not recorded. `cold`: as in
`bench/tile_kernels.py`. The first run compiles both, which takes minutes.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import torch
from flashinfer import BatchDecodeWithPagedKVCacheWrapper

from bench.tile_kernels import replayed_us, weights_of_a_layer
from kvtrace.probes.device.tiles import flashinfer, launch
from kvtrace.probes.device.tiles.ring import Ring

HEADS, KV_HEADS, SIZE, BLOCK, CONTEXT, LAYERS = 32, 8, 128, 16, 576, 16
ROUNDS, REPLAYS = 15, 20


def main() -> None:
    """Print a table."""
    ring = Ring(1 << 30)
    stream = torch.cuda.Stream()
    weights = weights_of_a_layer() if "cold" in sys.argv[1:] else None
    for sequences in [int(number) for number in sys.argv[1:] if number != "cold"] or [32, 256]:
        blocks = sequences * (CONTEXT // BLOCK)
        shape = LAYERS, blocks, 2, BLOCK, KV_HEADS, SIZE
        caches = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
        told = {caches[layer].data_ptr(): layer | 1 << 8 for layer in range(LAYERS)}
        graphs = {"own": captured(caches, sequences, stream, weights)}
        alone = torch.cuda.CUDAGraph()
        if weights:
            with torch.cuda.graph(alone, stream=stream):
                for _ in range(LAYERS):
                    weights()
        current = launch.Current(ring.control, -1)
        installed = flashinfer.install(current, frozenset(["read"]), fail, told)
        if installed.problems or "read" not in installed.kinds:
            fail(", ".join(installed.problems))
        graphs["recorded"] = captured(caches, sequences, stream, weights)
        rounds: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            off = 0.0
            if weights:
                off = statistics.median(
                    replayed_us(alone, ring, stream, enabled=False) / LAYERS for _ in range(REPLAYS)
                )
            for name, graph, enabled in (
                ("own", graphs["own"], False),
                ("recorded", graphs["recorded"], True),
                ("left out", graphs["recorded"], False),
                ("own again", graphs["own"], False),
            ):
                took = [replayed_us(graph, ring, stream, enabled=enabled) / LAYERS for _ in range(REPLAYS)]
                rounds.setdefault(name, []).append(statistics.median(took) - off)
        own = [(a + b) / 2 for a, b in zip(rounds["own"], rounds["own again"], strict=True)]
        for name, values in rounds.items():
            ratio = statistics.median(v / o for v, o in zip(values, own, strict=True))
            print(f"{sequences:4} x {CONTEXT} {name:10} {statistics.median(values):8.2f} us  {ratio:.3f}", flush=True)
        installed.undo()


def fail(why: str) -> None:
    """End the program."""
    raise SystemExit(why)


def captured(
    caches: torch.Tensor, sequences: int, stream: torch.cuda.Stream, weights: Callable[[], object] | None
) -> torch.cuda.CUDAGraph:
    """Capture one read of each layer."""
    pages = CONTEXT // BLOCK
    starts = pages * torch.arange(sequences + 1, dtype=torch.int32, device="cuda")
    indices = torch.randperm(caches.shape[1], device="cuda").to(torch.int32)
    last = torch.full((sequences,), BLOCK, dtype=torch.int32, device="cuda")
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        workspace, "NHD", use_cuda_graph=True, use_tensor_cores=True, paged_kv_indptr_buffer=starts.clone(),
        paged_kv_indices_buffer=indices.clone(), paged_kv_last_page_len_buffer=last.clone(), backend="fa2",
    )  # fmt: skip
    wrapper.plan(
        starts.cpu(), indices, last.cpu(), HEADS, KV_HEADS, SIZE, BLOCK,
        q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16,
    )  # fmt: skip
    query = torch.randn(sequences, HEADS, SIZE, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(query)
    with torch.cuda.stream(stream):
        for _ in range(2):
            for cache in caches:
                wrapper.run(query, cache, out=out)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for cache in caches:
                if weights:
                    weights()
                wrapper.run(query, cache, out=out)
    graph.kept = wrapper, query, out  # type: ignore[attr-defined]
    return graph


if __name__ == "__main__":
    main()
