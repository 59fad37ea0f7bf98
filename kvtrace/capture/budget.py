"""One allowance of bytes for all processes of a recording, asked before each segment and each piece of tiles."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from kvtrace.format import layout

_TAKEN = struct.Struct("<Q")


class Budget:
    """Bytes that may still be written to a run directory. A locked file in it counts for all processes.

    Args:
        run_dir: The run directory.
        max_bytes: The whole allowance; None for no limit.
    """

    def __init__(self, run_dir: Path, max_bytes: int | None) -> None:
        self._path = run_dir / layout.BUDGET
        self._max_bytes = max_bytes

    def take(self, size: int) -> None:
        """Count `size` bytes more.

        Raises:
            OSError: They are too many, and none were counted; or the file cannot be written.
        """
        if self._max_bytes is None:
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX)  # until it is closed
            data = os.pread(descriptor, _TAKEN.size, 0)
            taken = _TAKEN.unpack(data)[0] if len(data) == _TAKEN.size else 0
            if taken + size > self._max_bytes:
                raise OSError(f"the recording has reached its --max-bytes of {self._max_bytes:,}")
            os.pwrite(descriptor, _TAKEN.pack(taken + size), 0)
        finally:
            os.close(descriptor)
