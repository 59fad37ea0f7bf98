"""Filters and limits of `--kv-level tile`, from the command line to vLLM's processes.

`layer` takes one of them: which layers.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TypedDict

from kvtrace.errors import KvtraceError

TILES_VARIABLE = "KVTRACE_TILES"
"""Environment variable that carries the options, as JSON."""

KINDS = ("read", "write")


@dataclass(frozen=True)
class TileOptions:
    """Filters and limits; None and empty mean no limit.

    `layers` and `heads` are indices, of the layers that own a KV cache and of this rank's KV heads. `every` keeps each
    step that it divides, `first_step` and `last_step` a range (inclusive). `max_mb_per_s` thins by whole steps to that
    rate of bytes in the recording. `ring_mb` is device memory.
    """

    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    every: int = 1
    first_step: int | None = None
    last_step: int | None = None
    kinds: tuple[str, ...] = KINDS
    max_mb_per_s: float | None = None
    ring_mb: int | None = None

    @property
    def head_bits(self) -> int:
        """The heads as bits of a signed 64-bit integer; -1 for all."""
        if not self.heads:
            return -1
        bits = sum(1 << head for head in set(self.heads))
        return bits - (1 << 64) if bits >= 1 << 63 else bits

    def wants(self, step: int) -> bool:
        """Return whether the filters keep a step."""
        if step % self.every:
            return False
        return not (
            (self.first_step is not None and step < self.first_step)
            or (self.last_step is not None and step > self.last_step)
        )

    def to_environment(self) -> dict[str, str]:
        """The environment variable that carries them."""
        return {TILES_VARIABLE: json.dumps({k: v for k, v in asdict(self).items() if v not in (None, ())})}


def from_environment(environment: Mapping[str, str]) -> TileOptions:
    """The options an environment carries; the defaults where it carries none."""
    given = json.loads(environment.get(TILES_VARIABLE, "{}"))
    for name in ("layers", "heads", "kinds"):
        if name in given:
            given[name] = tuple(given[name])
    return TileOptions(**given)


def parse_indices(text: str, flag: str, below: int) -> tuple[int, ...]:
    """`0,15,30-31` as numbers, in order.

    Raises:
        KvtraceError: It is something else, or a number is not below `below`.
    """
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            raise KvtraceError(f"{flag} {text!r}: expected numbers and ranges such as 0,15,30-31", exit_code=2)
        first, last = int(match[1]), int(match[2] or match[1])
        if last >= below or first > last:
            raise KvtraceError(f"{flag} {text!r}: {part.strip()} is no range of numbers below {below}", exit_code=2)
        found.update(range(first, last + 1))
    return tuple(sorted(found))


class StepRange(TypedDict, total=False):
    """First and last step, inclusive."""

    first_step: int
    last_step: int


def parse_steps(text: str) -> StepRange:
    """`A:B` as first and last step; either may be left out, and the whole.

    Raises:
        KvtraceError: It is something else.
    """
    if not text:
        return {}
    match = re.fullmatch(r"(\d*):(\d*)", text)
    if match is None or not (match[1] or match[2]):
        raise KvtraceError(f"--steps {text!r}: expected A:B, such as 100:200 or 100:", exit_code=2)
    found: StepRange = {}
    if match[1]:
        found["first_step"] = int(match[1])
    if match[2]:
        found["last_step"] = int(match[2])
    if found.get("first_step", 0) > found.get("last_step", sys.maxsize):
        raise KvtraceError(f"--steps {text!r}: the first step comes after the last", exit_code=2)
    return found


def parse_kinds(text: str) -> tuple[str, ...]:
    """`read,write` or one of them.

    Raises:
        KvtraceError: It is something else.
    """
    kinds = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not set(kinds) <= set(KINDS):
        raise KvtraceError(f"--kinds {text!r}: expected read, write or read,write", exit_code=2)
    return kinds
