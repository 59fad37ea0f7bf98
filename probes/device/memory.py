"""Free and used memory of the GPU, every ten seconds."""

from __future__ import annotations

import time

from kvtrace.capture.recorder import Recorder

INTERVAL_SECONDS = 10.0
_ATTEMPTS = 5


class MemoryMeter:
    """Notes the current device's memory when made and, asked often enough, every ten seconds."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._due = 0.0
        self.keep()

    def keep(self) -> None:
        """Note the memory if that is due, without waiting for the GPU."""
        import torch

        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + INTERVAL_SECONDS
        # Of one moment: the engine may take memory from the device, or give it back, between the two readings.
        allocated, reserved = _held()
        for _ in range(_ATTEMPTS):
            free, total = torch.cuda.mem_get_info()
            before = reserved
            allocated, reserved = _held()
            if reserved == before:
                break
        self._recorder.note(
            "gpu_memory",
            free_bytes=free,
            total_bytes=total,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
        )


def _held() -> tuple[int, int]:
    """Read the bytes in tensors of this process and those PyTorch took from the device, at one moment."""
    import torch

    told = torch.cuda.memory_stats()
    return told.get("allocated_bytes.all.current", 0), told.get("reserved_bytes.all.current", 0)
