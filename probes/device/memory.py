"""How much of the GPU's memory is free and used, now and then."""

from __future__ import annotations

import time

from kvtrace.capture import Recorder

INTERVAL_SECONDS = 10.0


class MemoryMeter:
    """Notes the current device's memory when made and, asked often enough, every ten seconds."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._due = 0.0
        self.keep()

    def keep(self) -> None:
        """Note it if that is due. Waits for nothing on the GPU."""
        import torch

        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + INTERVAL_SECONDS
        free, total = torch.cuda.mem_get_info()
        self._recorder.note(
            "gpu_memory",
            free_bytes=free,
            total_bytes=total,
            allocated_bytes=torch.cuda.memory_allocated(),
            reserved_bytes=torch.cuda.memory_reserved(),
        )
