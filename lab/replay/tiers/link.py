"""Copies of one direction: one after the other, a latency and their bytes over a bandwidth each."""

from __future__ import annotations


class Link:
    """One direction between the GPU and a tier.

    Args:
        gb_per_s: Bandwidth, GB/s.
        latency_us: Time of a copy before its first byte, us.

    Attributes:
        free_at_ns: When the last copy ends.
    """

    def __init__(self, gb_per_s: float, latency_us: float = 0.0) -> None:
        self._ns_per_byte = 1 / gb_per_s
        self._latency_ns = int(latency_us * 1000)
        self.free_at_ns = 0

    def took_ns(self, size: int) -> int:
        """Time of a copy of so many bytes once it begins."""
        return self._latency_ns + int(size * self._ns_per_byte)

    def copy(self, size: int, now_ns: int) -> int:
        """Queue a copy. Return when it ends."""
        self.free_at_ns = max(self.free_at_ns, now_ns) + self.took_ns(size)
        return self.free_at_ns
