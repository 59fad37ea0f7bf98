"""Timestamps of calls captured into a CUDA graph, and a ring of steps.

Where a layer's kernels are rewritten, their programs keep the window themselves (`tiles/layout.py`). Elsewhere kernels
around it read the global timer. A stamp is a one-thread kernel that stores the time in a place of its own, so stamps
share nothing and wait for nothing. After the forward pass one kernel moves all times into the ring as one step. It
tells the host nothing: that would make the GPU wait for the PCIe bus in every step; whoever drains the ring asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.probes.device.cuda import STAMP, Launch, Module, count, pointer, word
from kvtrace.probes.device.tiles.layout import (
    ATTENTION_WINDOW,
    FIRST,
    LAST,
    WAY_WORDS,
    WINDOW_WAYS,
    WINDOW_WORDS,
    WRITE_WINDOW,
)

if TYPE_CHECKING:
    from torch import Tensor

RING_BYTES = 8 << 20
"""Device memory for the ring; it holds at least 16 steps."""

PLACES = 4
WRITE_START, WRITE_END, ATTENTION_START, ATTENTION_END = range(PLACES)
"""A layer's four places. A write's end is the attention's start where that has no stamp of its own."""

WINDOWS = 2
"""Windows a layer and step: write, attention."""

SOURCE = (
    STAMP
    + f"""
#define WINDOW_WAYS {WINDOW_WAYS}
#define WAY_WORDS {WAY_WORDS}
#define WINDOW_WORDS {WINDOW_WORDS}
#define WRITE_FIRST {WRITE_WINDOW + FIRST}
#define WRITE_LAST {WRITE_WINDOW + LAST}
#define ATTENTION_FIRST {ATTENTION_WINDOW + FIRST}
#define ATTENTION_LAST {ATTENTION_WINDOW + LAST}
"""
    + r"""
// The first of several calls that make up one window.
extern "C" __global__ void kvt_stamp_first(u64* place) {
    u64 time = now();
    if (!*place) *place = time;
}

// Forgets the times of what ran before: a dummy run, a draft model.
extern "C" __global__ void kvt_clear(u64* places, u64* windows, unsigned int layers) {
    for (unsigned int i = threadIdx.x; i < 4 * layers; i += blockDim.x) places[i] = 0;
    for (unsigned int i = threadIdx.x; windows && i < WINDOW_WORDS * layers; i += blockDim.x) windows[i] = 0;
}

// The largest of each word's ways, in its first way; leaves nothing in the others.
__device__ void gather(u64* windows, unsigned int layers) {
    for (unsigned int i = threadIdx.x; i < 4 * layers; i += blockDim.x) {
        u64* word = windows + WINDOW_WORDS * (i / 4) + i % 4;
        u64 largest = 0;
#pragma unroll
        for (int way = 0; way < WINDOW_WAYS; ++way) largest = max(largest, word[WAY_WORDS * way]);
#pragma unroll
        for (int way = 1; way < WINDOW_WAYS; ++way) word[WAY_WORDS * way] = 0;
        word[0] = largest;
    }
    __syncthreads();
}

// Appends a step to the ring: its number, then start and end of each layer's write and attention; 0, 0 for one that
// did not run. Programs' own times go before those of stamps. Leaves no time behind.
extern "C" __global__ void kvt_publish(u64* places, u64* windows, u64* ring, u64* appended, u64 step,
                                       unsigned int layers, unsigned int slots) {
    if (windows) gather(windows, layers);
    u64 count = *appended;
    u64* slot = ring + (count % slots) * (1 + 4 * layers);
    for (unsigned int layer = threadIdx.x; layer < layers; layer += blockDim.x) {
        u64 *place = places + 4 * layer, none[4] = {0, 0, 0, 0};
        u64* seen = windows ? windows + WINDOW_WORDS * layer : none;
        u64 write_start = place[0], write_end = place[1], start = place[2], end = place[3];
        if (seen[WRITE_FIRST]) write_start = ~seen[WRITE_FIRST], write_end = seen[WRITE_LAST];
        if (seen[ATTENTION_FIRST]) start = ~seen[ATTENTION_FIRST], end = seen[ATTENTION_LAST];
        if (!start) start = write_end;
        u64* out = slot + 1 + 4 * layer;
        bool wrote = write_start && write_end, attended = start && end;
        out[0] = wrote ? write_start : 0;
        out[1] = wrote ? write_end : 0;
        out[2] = attended ? start : 0;
        out[3] = attended ? end : 0;
        place[0] = place[1] = place[2] = place[3] = 0;
        seen[0] = seen[1] = seen[2] = seen[3] = 0;
    }
    if (threadIdx.x == 0) slot[0] = step;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *appended = count + 1;
}
"""
)


class GraphTimestamps:
    """The places, the ring and the launches of one device.

    Args:
        layers: Layers that own a KV cache.

    Raises:
        ImportError: CuPy is not installed.
    """

    def __init__(self, layers: int) -> None:
        import torch

        self.layers = layers
        self.words = 1 + 2 * WINDOWS * layers
        self.slots = max(16, RING_BYTES // (8 * self.words))
        device = torch.cuda.current_device()
        with torch.inference_mode(False):
            self.places = torch.zeros(4 * layers, dtype=torch.int64, device=device)
            self.ring = torch.zeros((self.slots, self.words), dtype=torch.int64, device=device)
            self.appended = torch.zeros(1, dtype=torch.int64, device=device)
            torch.cuda.current_stream().synchronize()
        self._module = Module(SOURCE)
        self._step = word(0)
        self._windows = pointer(0)  # until kernels keep some
        places = pointer(self.places.data_ptr())
        self.clear = self._module.launch("kvt_clear", 128, places, self._windows, count(layers))
        self._publish = self._module.launch(
            "kvt_publish",
            128,
            places,
            self._windows,
            pointer(self.ring.data_ptr()),
            pointer(self.appended.data_ptr()),
            self._step,
            count(layers),
            count(self.slots),
        )

    def windows(self) -> Tensor:
        """Make the memory where rewritten kernels keep windows. They are published from now on."""
        import torch

        with torch.inference_mode(False):
            made = torch.zeros(WINDOW_WORDS * self.layers, dtype=torch.int64, device=self.places.device)
            torch.cuda.current_stream().synchronize()
        self._windows.value = made.data_ptr()
        return made

    def stamp(self, layer: int, place: int, *, first: bool = False) -> Launch:
        """Make the launch that stores the time in a layer's place; with `first`, only if the step has none there."""
        kernel = "kvt_stamp_first" if first else "kvt_stamp"
        return self._module.launch(kernel, 1, pointer(self.places.data_ptr() + 8 * (4 * layer + place)))

    def publish(self, step: int, stream: int) -> None:
        """Append the times so far as a step. The driver copies the argument, so it may change right after."""
        self._step.value = step
        self._publish(stream)
