"""State of engines, pools and requests that compiled code reads, too, where there is some.

It does so in every call of vLLM's that is hooked, and asking Python for each attribute would be most of its time.
"""

from __future__ import annotations

from typing import Any

try:
    from kvtrace.capture._native import EngineState, PoolState, RequestState
except ImportError:  # kvtrace was installed without a compiler

    class EngineState:  # type: ignore[no-redef]
        """Of a scheduler."""

        requests: Any = None
        lookup: Any = None
        holder: Any = None
        acting_step = 0
        owner = 0

    class PoolState:  # type: ignore[no-redef]
        """Of a block pool."""

        engine: Any = None
        tier: Any = None
        index = 0
        cached = 0
        evicted = 0

    class RequestState:  # type: ignore[no-redef]
        """Of a request."""

        __slots__ = ("decode_from", "number")

        number: int
        decode_from: int


__all__ = ["EngineState", "PoolState", "RequestState"]
