"""The CUDA side: stamps of the global timer, a ring of windows in device memory, and their launch.

Launches go through the driver with arguments packed once, since a stamp outside a CUDA graph is launched from Python
for every layer of every step. Everything works on memory that torch allocated, on whatever stream is current.
"""

from __future__ import annotations

import ctypes
from typing import Any

RING_RECORDS = 1 << 16
"""Windows the ring holds: 1,024 steps of a 32-layer model, so a drain may lag by seconds."""

RECORD_WORDS = 3
"""A window is three 64-bit words: start; duration (low 32 bits) and step; layer (low 16 bits) and kind."""

WRITE, ATTENTION = 1, 2
NONE = 0

SOURCE = r"""
struct State {                    // in device memory, as 64-bit words
    unsigned long long cursor;    // windows appended since the start
    unsigned long long step;      // of the forward pass under way; 0: a dummy run, nothing is kept
    unsigned long long open[1];   // start of each layer's write and attention window
};

__device__ __forceinline__ unsigned long long now() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t) :: "memory");
    return t;
}

// Ends the window `ends` of a layer, if any, and begins the window `begins`, if any.
extern "C" __global__ void kvt_stamp(State* state, unsigned long long* ring, unsigned long long mask,
                                     unsigned int layer, unsigned int ends, unsigned int begins) {
    unsigned long long t = now();
    unsigned long long* open = state->open + 2 * layer - 1;
    unsigned long long step = state->step;
    if (ends && step) {
        unsigned long long start = open[ends];
        unsigned long long* record = ring + 3 * (atomicAdd(&state->cursor, 1ULL) & mask);
        record[0] = start;
        record[1] = (t - start) | step << 32;
        record[2] = layer | (unsigned long long)ends << 16;
    }
    if (begins) open[begins] = t;
}

// Names the step that the stamps after it belong to.
extern "C" __global__ void kvt_step(State* state, unsigned long long step) { state->step = step; }

// Tells the host, through pinned memory, how far the ring is filled.
extern "C" __global__ void kvt_publish(State* state, volatile unsigned long long* published) {
    __threadfence_system();
    *published = state->cursor;
}

// Answers each number the host writes to `asked` with the global timer; gives up after a millisecond without one.
extern "C" __global__ void kvt_answer(volatile unsigned long long* asked, volatile unsigned long long* answers,
                                      unsigned int count) {
    for (unsigned int i = 0; i < count; ++i) {
        unsigned long long since = now();
        while (asked[0] <= i)
            if (now() - since > 1000000ULL) return;
        answers[i] = now();
        __threadfence_system();
    }
}
"""


class _Launch:
    """A kernel with its arguments packed, to be launched on any stream as one thread."""

    def __init__(self, driver: Any, function: int, *arguments: ctypes._SimpleCData[Any]) -> None:
        self._driver = driver
        self._function = function
        self._arguments = arguments
        pointers = [ctypes.cast(ctypes.pointer(argument), ctypes.c_void_p).value for argument in arguments]
        self._packed = (ctypes.c_void_p * len(pointers))(*pointers)
        self._address = ctypes.addressof(self._packed)

    def __call__(self, stream: int) -> None:
        self._driver.launchKernel(self._function, 1, 1, 1, 1, 1, 1, 0, stream, self._address, 0)


class Stamps:
    """The ring and the launches of one device.

    Args:
        layers: KV layers of the model.
        records: Ring size; a power of two.

    Raises:
        ImportError: CuPy is not installed.
    """

    def __init__(self, layers: int, records: int = RING_RECORDS) -> None:
        import cupy
        import torch

        self.records = records
        self.dropped_steps = 0
        device = torch.cuda.current_device()
        with torch.inference_mode(False):
            self.state = torch.zeros(2 + 2 * layers, dtype=torch.int64, device=device)
            self.ring = torch.zeros((records, RECORD_WORDS), dtype=torch.int64, device=device)
            self.published = torch.zeros(1, dtype=torch.int64, pin_memory=True)
            self.asked = torch.zeros(1, dtype=torch.int64, pin_memory=True)
            self.answers = torch.zeros(64, dtype=torch.int64, pin_memory=True)
            torch.cuda.current_stream().synchronize()
        self._module = cupy.RawModule(code=SOURCE, options=("-std=c++17",))
        self._driver = cupy.cuda.driver
        self._step_value = ctypes.c_uint64(0)
        pointer = ctypes.c_void_p
        state = pointer(self.state.data_ptr())
        self._set_step = self._launch("kvt_step", state, self._step_value)
        self.publish = self._launch("kvt_publish", state, pointer(self.published.data_ptr()))
        self.answer = self._launch(
            "kvt_answer",
            pointer(self.asked.data_ptr()),
            pointer(self.answers.data_ptr()),
            ctypes.c_uint32(len(self.answers)),
        )

    def _launch(self, kernel: str, *arguments: Any) -> _Launch:
        return _Launch(self._driver, self._module.get_function(kernel).kernel.ptr, *arguments)

    def stamp(self, layer: int, ends: int, begins: int) -> _Launch:
        """The launch that ends one window of a layer and begins another (`NONE` for either)."""
        return self._launch(
            "kvt_stamp",
            ctypes.c_void_p(self.state.data_ptr()),
            ctypes.c_void_p(self.ring.data_ptr()),
            ctypes.c_uint64(self.records - 1),
            ctypes.c_uint32(layer),
            ctypes.c_uint32(ends),
            ctypes.c_uint32(begins),
        )

    def begin_step(self, step: int, stream: int) -> None:
        """Name the step on the device. The driver copies the argument, so the value may change right after."""
        self._step_value.value = step
        self._set_step(stream)
