"""On a GPU, without an engine: windows that kernels observe, against stamps around them and tiles recorded beside them.

    python -m pytest tests/gpu/test_kernel_windows.py

vLLM's own kernels, rewritten with both outputs, in CUDA graphs that are replayed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.gpu import has_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_gpu("vllm"), reason="needs a CUDA device, vLLM and CuPy")]

LAYERS, REPLAYS = 6, 5
KERNELS = ("triton decode", "triton segments", "triton prefill", "fa4 decode", "fa4 split", "fa4 prefill")


class Replayed(NamedTuple):
    """Times of one replay, ns on the GPU's global timer: by layer and place, 0 where there is none."""

    windows: Any
    stamps: Any
    records: Any  # StepTiles; None: no tiles were recorded


class Bench:
    """Layers that write and attend, captured with stamps around each call."""

    def __init__(self, kernels: str, *, tiles: bool) -> None:
        import torch

        from kvtrace.probes.device.graph_timestamps import GraphTimestamps
        from kvtrace.probes.device.tiles import fa4, launch
        from kvtrace.probes.device.tiles.launch import Current
        from kvtrace.probes.device.tiles.ring import Ring

        self.failures: list[str] = []
        self.windows, self.stamps = GraphTimestamps(LAYERS), GraphTimestamps(LAYERS)
        self.ring = Ring(64 << 20) if tiles else None
        self.current = Current(self.ring.control if self.ring else None, -1, self.windows.windows())
        module = fa4 if "fa4" in kernels else launch
        kinds = frozenset({"read"} if "fa4" in kernels else {"read", "write"})
        self.installed = module.install(self.current, kinds, self.failures.append)
        assert self.installed.kinds == kinds, self.installed.problems
        self.stream = torch.cuda.Stream()
        self.closed = 0

    def capture(self, calls: dict[int, Callable[[], None]]) -> Any:
        """A graph of all layers; `calls` by the place of the stamp before them, with one after them."""
        import torch

        def layers() -> None:
            for layer in range(LAYERS):
                for place, call in calls.items():
                    self.stamps.stamp(layer, place)(self.stream.cuda_stream)
                    self.current.what = layer | 1 << 8 | (1 << 16 if layer == 0 else 0)
                    call()
                    self.current.what = None
                    self.stamps.stamp(layer, place + 1)(self.stream.cuda_stream)

        with torch.cuda.stream(self.stream):
            layers()
            self.stream.synchronize()
            self.windows.clear(self.stream.cuda_stream)
            self.stamps.clear(self.stream.cuda_stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                layers()
        return graph

    def replay(self, graph: Any) -> Replayed:
        import torch

        with torch.cuda.stream(self.stream):
            if self.ring:
                self.ring.open(self.stream.cuda_stream, enabled=True)
            graph.replay()
            if self.ring:
                self.ring.close(self.closed, self.stream.cuda_stream)
            for times in (self.windows, self.stamps):
                times.publish(self.closed + 1, self.stream.cuda_stream)
            self.stream.synchronize()
        self.closed += 1
        found = [times.ring[self.closed - 1].cpu().numpy() for times in (self.windows, self.stamps)]
        assert [row[0] for row in found] == [self.closed] * 2
        windows, stamps = (row[1:].reshape(LAYERS, 4) for row in found)
        return Replayed(windows, stamps, self._records() if self.ring else None)

    def _records(self) -> Any:
        """Read the tiles of the step that was closed last, and give their room back."""
        from kvtrace.format.tile_file import SECTION_BYTES
        from kvtrace.ingest.derive import tile_columns
        from kvtrace.probes.device.tiles import layout
        from kvtrace.probes.device.tiles.ring import STEP_SLOTS

        assert self.ring is not None
        step = self.ring.steps.numpy()[(self.closed - 1) % STEP_SLOTS]
        assert step[layout.STATE_WORD] == layout.RECORDED
        starts = [int(step[layout.START_WORD + section]) for section in range(3)]
        counts = [int(step[layout.COUNT_WORD + section]) for section in range(3)]
        sections = []
        for section, (start, count) in enumerate(zip(starts, counts, strict=True)):
            first = start % self.ring.capacities[section] * SECTION_BYTES[section]
            size = count * SECTION_BYTES[section]
            sections.append(self.ring.memory[section][first : first + size].cpu().numpy().tobytes())
            self.ring.released[section] = start + count
        self.ring.released[3] = self.closed
        at = starts[layout.TILES] % self.ring.capacities[layout.TILES]
        origin = int(self.ring.memory[layout.TILES].data_ptr()) // 2 + at
        return tile_columns.from_sections(sections, origin & 0xFFFFFFFF)


def calls_of(kernels: str) -> dict[int, Callable[[], None]]:
    """A layer's calls, by the place of the stamp before them."""
    from kvtrace.probes.device.graph_timestamps import ATTENTION_START, WRITE_START

    if "triton" in kernels:
        from bench.tile_kernels import batch

        shape = {"decode": (32, 1, 576), "segments": (4, 1, 900), "prefill": (4, 256, 512)}[kernels.split()[1]]
        read, write = batch(*shape)
        return {WRITE_START: write, ATTENTION_START: read}
    import torch
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    from bench.fa4_tiles import Batch

    lengths, queries, splits = {
        "decode": ([512 + 4 * row for row in range(32)], [1] * 32, 0),
        "split": ([1000, 40, 130, 513], [1] * 4, 4),
        "prefill": ([512] * 4, [512] * 4, 0),
    }[kernels.split()[1]]
    arguments = Batch(lengths, queries, 16).arguments
    out = torch.empty_like(arguments["q"])
    return {ATTENTION_START: partial(flash_attn_varlen_func, **arguments, out=out, num_splits=splits)}


@pytest.fixture(scope="module", params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> str:
    if "fa4" in request.param and importlib.util.find_spec("cutlass") is None:
        pytest.skip("FlashAttention 4 needs nvidia-cutlass-dsl")
    return str(request.param)


@pytest.fixture(scope="module", params=["windows", "both"])
def replays(kernels: str, request: pytest.FixtureRequest) -> Iterator[tuple[str, list[Replayed]]]:
    bench = Bench(kernels, tiles=request.param == "both")
    try:
        graph = bench.capture(calls_of(kernels))
        yield kernels, [bench.replay(graph) for _ in range(REPLAYS)]
        assert bench.failures == []
    finally:
        bench.installed.undo()


def test_every_layer_has_its_windows_between_the_stamps_around_its_calls(replays: tuple[str, list[Replayed]]) -> None:
    kernels, found = replays
    first = 0 if "triton" in kernels else 2
    previous = 0
    for replay in found:
        for layer in range(LAYERS):
            window, stamp = replay.windows[layer][first:], replay.stamps[layer][first:]
            print(kernels, layer, *(window - stamp[0]), *(stamp - stamp[0]))
            assert (window[0::2] > stamp[0::2]).all()
            assert (window[0::2] < window[1::2]).all()
            assert (window[1::2] < stamp[1::2]).all()
            assert stamp[0] >= previous
            previous = stamp[-1]
        assert (replay.windows[:, :first] == 0).all()


def test_a_window_takes_most_of_the_time_between_the_stamps(replays: tuple[str, list[Replayed]]) -> None:
    """A window leaves out the way from the stamp to the first program, and from the last one to the stamp."""
    _, found = replays
    outside = [
        int((stamp[3] - stamp[2]) - (window[3] - window[2]))
        for replay in found
        for window, stamp in zip(replay.windows, replay.stamps, strict=True)
    ]
    outside.sort()
    print("attention's stamps are longer by", outside[len(outside) // 2], "ns in the median")
    assert 0 < outside[len(outside) // 2] < 15_000


def test_windows_contain_the_tiles_that_are_recorded_beside_them(replays: tuple[str, list[Replayed]]) -> None:
    import numpy as np

    from kvtrace.ingest.derive import tile_columns

    kernels, found = replays
    if found[0].records is None:
        pytest.skip("no tiles are recorded")
    for replay in found:
        times, programs = tile_columns.times(replay.records), replay.records.programs
        layers = programs["layer"][times.program]

        def since(low_words: Any, first: Any) -> Any:
            """Low words of the timer, as ns since a time of 64 bits shortly before."""
            return (low_words - (first & 0xFFFFFFFF)).astype(np.int64) & 0xFFFFFFFF

        for layer, (_, _, first, last) in enumerate(replay.windows):
            mine = layers == layer
            assert mine.any()
            starts, ends = since(times.k_start_ns[mine], first), since(times.v_ns[mine], first)
            print(kernels, layer, "window", last - first, "tiles from", starts.min(), "to", ends.max())
            assert starts.min() < 2_000
            assert ends.max() <= last - first
        writes = replay.records.writes
        for layer, (first, last, _, _) in enumerate(replay.windows if len(writes) else []):
            mine = writes["layer"] == layer
            ticks = (writes["k_ticks"].astype(np.int64) + writes["v_ticks"])[mine]
            starts = since(writes["start"][mine].astype(np.int64), first)
            assert starts.min() < 2_000
            assert (starts + 32 * ticks).max() <= last - first
