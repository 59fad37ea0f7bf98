"""The device memory that rewritten kernels write to, and the two one-thread kernels that open and close a step in it.

A step's records of one kind lie in one piece. Opening a step finds the longest free piece of each section of the ring
and puts its address and length into the control words; programs reserve their places there with atomics. Closing the
step checks that all found room and tells the host through pinned memory; a step with too little room is dropped whole,
and the next one takes its place. The host frees what it has copied by writing positions to pinned memory. Nothing
waits for anything.
"""

from __future__ import annotations

from kvtrace.probes.device.cuda import NOW, Module, pointer, word
from kvtrace.probes.device.tiles import layout
from kvtrace.probes.device.tiles.layout import CONTROL_WORDS, SECTIONS, STEP_WORDS

STEP_SLOTS = 1024
"""Closed steps that may wait for the host."""

_WORDS = "".join(
    f"#define {name} {getattr(layout, name)}\n"
    for name in dir(layout)
    if name.isupper() and isinstance(getattr(layout, name), int)
)

RING_CODE = (
    _WORDS
    + f"#define SECTIONS {len(SECTIONS)}\n#define STEP_SLOTS {STEP_SLOTS}\n"
    + f"CONSTANT int CURSOR_WORDS[] = {{{', '.join(map(str, layout.CURSOR_WORDS))}}};\n"
    + f"CONSTANT int RECORD_BYTES[] = {{{', '.join(str(section.record_bytes) for section in SECTIONS)}}};\n"
    + r"""
typedef unsigned long long u64;

// Finds each section's longest free piece. `released`: positions up to which the host has copied, then closed steps.
DEVICE void open_step(u64* control, volatile const u64* released, u64 enabled, u64 now) {
    enabled = enabled && control[PUBLISHED_WORD] - released[SECTIONS] < STEP_SLOTS;
    for (int s = 0; s < SECTIONS; ++s) {
        control[CURSOR_WORDS[s]] = 0;
        u64 capacity = control[CAPACITY_WORD + s], head = control[HEAD_WORD + s];
        u64 used = head - released[s], to_end = capacity - head % capacity;
        u64 here = to_end < capacity - used ? to_end : capacity - used;
        u64 at_start = used + to_end < capacity ? capacity - used - to_end : 0;
        if (at_start > here) {  // the rest up to the end stays empty
            head += to_end;
            here = at_start;
        }
        control[HEAD_WORD + s] = head;
        control[ROOM_WORD + s] = enabled ? here : 0;
        control[ADDRESS_WORD + s] = control[BASE_WORD + s] + head % capacity * RECORD_BYTES[s];
    }
    control[OPENED_WORD] = now;
    control[ENABLED_WORD] = enabled;
}

// Describes the step in the next slot. Returns how many steps have been closed.
DEVICE u64 close_step(u64* control, volatile const u64* released, volatile u64* steps, u64 step, u64 filtered) {
    u64 published = control[PUBLISHED_WORD];
    if (published - released[SECTIONS] >= STEP_SLOTS) {  // no slot: the host is far behind
        control[LOST_WORD] += 1;
        return published;
    }
    volatile u64* out = steps + published % STEP_SLOTS * STEP_WORDS;
    u64 pair = control[CURSOR_WORDS[PROGRAMS]];
    u64 counts[SECTIONS];
    counts[PROGRAMS] = pair >> TILE_BITS;
    counts[TILES] = pair & ((1ULL << TILE_BITS) - 1);
    counts[WRITES] = control[CURSOR_WORDS[WRITES]];
    u64 state = control[ENABLED_WORD] ? RECORDED : OVERFLOWED;
    for (int s = 0; s < SECTIONS; ++s)  // without any room programs do not even count
        if (state == RECORDED && (counts[s] > control[ROOM_WORD + s] || !control[ROOM_WORD + s])) state = OVERFLOWED;
    out[STEP_WORD] = step;
    out[TIME_WORD] = control[OPENED_WORD];
    out[STATE_WORD] = state;
    out[LOST_BEFORE_WORD] = control[LOST_WORD];
    out[FILTERED_BEFORE_WORD] = filtered;
    for (int s = 0; s < SECTIONS; ++s) {
        out[START_WORD + s] = control[HEAD_WORD + s];
        out[COUNT_WORD + s] = counts[s];
        if (state == RECORDED) control[HEAD_WORD + s] += counts[s];
    }
    for (int s = 0; s < SECTIONS; ++s) control[ROOM_WORD + s] = 0;  // until the next step opens
    return control[PUBLISHED_WORD] = published + 1;
}
"""
)
"""Runs on the device, and in the tests on the CPU: `DEVICE` and `CONSTANT` are what the compiler wants there."""

_KERNELS = r"""
extern "C" __global__ void kvt_open(u64* control, volatile const u64* released, u64 enabled) {
    open_step(control, released, enabled, now());
}

extern "C" __global__ void kvt_close(u64* control, volatile const u64* released, volatile u64* steps,
                                     volatile u64* published, u64 step, u64 filtered) {
    u64 count = close_step(control, released, steps, step, filtered);
    __threadfence_system();
    *published = count;
}
"""

CUDA_SOURCE = (
    NOW + "#define DEVICE static __device__\n#define CONSTANT static __device__ const\n" + RING_CODE + _KERNELS
)


class Ring:
    """The ring of one device.

    Args:
        ring_bytes: Device memory for it.

    Raises:
        ImportError: CuPy is not installed.
        RuntimeError: The device has not that much memory left.
    """

    def __init__(self, ring_bytes: int) -> None:
        import torch

        device = torch.cuda.current_device()
        self.capacities = [int(ring_bytes * section.share) // section.record_bytes for section in SECTIONS]
        with torch.inference_mode(False):
            self.memory = [
                torch.zeros(capacity * section.record_bytes, dtype=torch.uint8, device=device)
                for capacity, section in zip(self.capacities, SECTIONS, strict=True)
            ]
            self.control = torch.zeros(CONTROL_WORDS, dtype=torch.int64, device=device)
            for index, (memory, capacity) in enumerate(zip(self.memory, self.capacities, strict=True)):
                self.control[layout.CAPACITY_WORD + index] = capacity
                self.control[layout.BASE_WORD + index] = memory.data_ptr()
            self.released = torch.zeros(len(SECTIONS) + 1, dtype=torch.int64, pin_memory=True)
            self.steps = torch.zeros((STEP_SLOTS, STEP_WORDS), dtype=torch.int64, pin_memory=True)
            self.published = torch.zeros(1, dtype=torch.int64, pin_memory=True)
            torch.cuda.synchronize()
        module = Module(CUDA_SOURCE)
        self._enabled, self._step, self._filtered = word(0), word(0), word(0)
        control, released = pointer(self.control.data_ptr()), pointer(self.released.data_ptr())
        self._open = module.launch("kvt_open", 1, control, released, self._enabled)
        self._close = module.launch(
            "kvt_close",
            1,
            control,
            released,
            pointer(self.steps.data_ptr()),
            pointer(self.published.data_ptr()),
            self._step,
            self._filtered,
        )

    def open(self, stream: int, *, enabled: bool) -> None:
        """Begin a step on a stream; or, not enabled, forget one that was begun and not ended."""
        self._enabled.value = enabled
        self._open(stream)

    def close(self, step: int, stream: int, *, filtered: int = 0) -> None:
        """Close the step; so many before it were left out by the filters."""
        self._step.value, self._filtered.value = step, filtered
        self._close(stream)
