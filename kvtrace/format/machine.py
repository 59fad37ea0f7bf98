"""Which kernel, and which of its process tables, a process lives in: what makes a pid mean one process."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

UNKNOWN = "unknown"


def boot_id() -> str:
    """Return the id that the kernel drew when it booted."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return UNKNOWN


def pid_namespace() -> str:
    """Return the id of the process table whose pids this process sees; each container has one of its own."""
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return UNKNOWN
