"""Limits on the size of a recording: `kvtrace record`'s caps, from the command line to vLLM's processes.

Without `--keep-last` a full recording stops. With it the launcher discards the oldest segments
(`kvtrace.retention`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kvtrace.errors import KvtraceError

LIMITS_VARIABLE = "KVTRACE_LIMITS"
"""Environment variable that carries what vLLM's processes must know, as JSON."""

LEAST_BYTES = 16_000_000
LEAST_KEEP_NS = 1_000_000_000
_SEGMENTS_A_CAP, _FILES_A_CAP = 128, 32
LARGEST_SEGMENT_BYTES = 1 << 24
_SMALLEST_SEGMENT = 1 << 16
_PARTS_A_KEEP = 8
_MOST_SEGMENT_NS = 600_000_000_000
_BYTES_ONLY_SEGMENT_NS = 60_000_000_000

_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Limits:
    """The caps; None means no limit.

    `keeps`: the oldest go, and recording goes on. `keep_ns` is how much time stays. `max_bytes` is of the whole run
    directory, as allocated on disk. `segment_ns` is how long a segment is written to.
    """

    max_bytes: int | None = None
    segment_ns: int | None = None
    keeps: bool = False
    keep_ns: int | None = None

    @property
    def segment_bytes(self) -> int:
        """The largest segment: small beside the cap, so that letting one go does not let all go."""
        if self.max_bytes is None:
            return LARGEST_SEGMENT_BYTES
        return max(_SMALLEST_SEGMENT, min(LARGEST_SEGMENT_BYTES, self.max_bytes // _SEGMENTS_A_CAP))

    @property
    def file_bytes(self) -> int:
        """The largest file of tiles."""
        return 1 << 30 if self.max_bytes is None else max(_SMALLEST_SEGMENT, self.max_bytes // _FILES_A_CAP)

    @property
    def stop_bytes(self) -> int | None:
        """Return the bytes at which writers stop; None if the oldest records are discarded instead."""
        return None if self.keeps else self.max_bytes

    def to_environment(self) -> dict[str, str]:
        """The environment variable that carries what writers must know; none without limits."""
        if self == Limits():
            return {}
        facts = {"max_bytes": self.max_bytes, "segment_ns": self.segment_ns, "keeps": self.keeps}
        return {LIMITS_VARIABLE: json.dumps({key: value for key, value in facts.items() if value is not None})}


def from_environment(environment: Mapping[str, str]) -> Limits:
    """The limits an environment carries; none where it carries none."""
    return Limits(**json.loads(environment.get(LIMITS_VARIABLE, "{}")))


def parse_limits(max_bytes: str, segment_minutes: float | None, keep_last: str) -> Limits:
    """The limits of a command line; empty texts and None where a flag was not given.

    Raises:
        KvtraceError: A text is no size or duration, or the flags contradict each other.
    """
    most = _size(max_bytes, "--max-bytes") if max_bytes else None
    segment_ns = None if segment_minutes is None else round(segment_minutes * 60e9)
    if not keep_last:
        return Limits(most, segment_ns)
    keep_ns = _duration_ns(keep_last)
    if keep_ns is None:
        if most is not None:
            raise KvtraceError("--keep-last SIZE is a cap itself; give --max-bytes with --keep-last DURATION only", 2)
        most = _size(keep_last, "--keep-last")
        return Limits(most, segment_ns or _BYTES_ONLY_SEGMENT_NS, keeps=True)
    if keep_ns < LEAST_KEEP_NS:
        raise KvtraceError(f"--keep-last {keep_last!r}: expected a second or more", 2)
    return Limits(most, segment_ns or min(keep_ns // _PARTS_A_KEEP, _MOST_SEGMENT_NS), keeps=True, keep_ns=keep_ns)


def _duration_ns(text: str) -> int | None:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d)\s*", text)
    return round(float(match[1]) * _SECONDS[match[2]] * 1e9) if match else None


def _size(text: str, flag: str) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)\s*", text.lower())
    if match is None or match[2] not in _BYTES:
        also = ", or a duration such as 90s, 10m, 2h" if flag == "--keep-last" else ""
        raise KvtraceError(f"{flag} {text!r}: expected a size such as 500MB or 2GiB{also}", 2)
    size = round(float(match[1]) * _BYTES[match[2]])
    if size < LEAST_BYTES:
        raise KvtraceError(f"{flag} {text!r}: expected {LEAST_BYTES // 10**6} MB or more, room for all streams", 2)
    return size
