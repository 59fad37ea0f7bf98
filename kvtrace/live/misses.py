"""Why admitted lookups missed, judged as they come: the verdicts of `docs/misses.md` that need no trace."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtrace.events import BlockOp
from kvtrace.live.requests import Requests
from kvtrace.live.tail import Rows
from kvtrace.live.window import table

PLACES = 1 << 20
"""Hashes remembered; a newer hash replaces an older one at the same place."""


class Verdict(enum.IntEnum):
    """Why the first block that had to be computed was not in the cache."""

    reading_off = 0  # prefix caching is off, or the request does not read the cache
    shorter_than_block = 1
    last_token = 2
    not_used = 3
    not_finished_storing = 4
    evicted = 5
    reset = 6
    never_stored = 7  # or so long ago that it is no longer remembered
    unknown = 8  # its hash was not recorded


class _Fate(enum.IntEnum):
    stored = 1
    evicted = 2
    reset = 3


class Misses:
    """Judges lookups by what became of block hashes so far.

    Args:
        block_tokens: Tokens of a hashed block.
        requests: The engine's requests, to tell which still run.
    """

    def __init__(self, block_tokens: int, requests: Requests) -> None:
        self.block_tokens = block_tokens
        self._requests = requests
        self._hash = table(PLACES, np.uint64)
        self._fate = table(PLACES, np.uint8)
        self._wanted_by = table(PLACES, np.uint32)

    def judge(self, lookups: Rows, hashes: Rows, blocks: Rows) -> Iterator[tuple[int, Verdict]]:
        """Judge admitted lookups.

        Args:
            lookups: Admitted lookups of `prefix_lookup`, in order.
            hashes: The rows of `request_hash` of the same steps.
            blocks: The rows of `block_event` of the same steps.

        Yields:
            When each lookup was made, and the verdict.
        """
        changes = blocks[(blocks["pool"] == 0) & np.isin(blocks["op"], (BlockOp.cache, BlockOp.evict, BlockOp.reset))]
        begins = _chains(hashes)
        done = 0
        for lookup in lookups:
            until = done + int(np.searchsorted(changes["time_ns"][done:], lookup["time_ns"]))
            self._apply(changes[done:until])
            done = until
            start, end = begins.get((int(lookup["step"]), int(lookup["request"])), (0, 0))
            yield int(lookup["time_ns"]), self._verdict(lookup, hashes[start:end])
            self._want(hashes["block_hash"][start:end], int(lookup["request"]))
        self._apply(changes[done:])

    def _verdict(self, lookup: Any, chain: Rows) -> Verdict:
        if not lookup["enabled"]:
            return Verdict.reading_off
        block = (int(lookup["local_hit_tokens"]) + max(int(lookup["external_hit_tokens"]), 0)) // self.block_tokens
        end_tokens = (block + 1) * self.block_tokens
        if end_tokens > lookup["queried_tokens"]:
            return Verdict.shorter_than_block
        at = int(np.searchsorted(chain["position"], block))
        if at == len(chain) or chain["position"][at] != block:
            return Verdict.unknown
        wanted = chain["block_hash"][at]
        place = int(wanted % PLACES)
        known = self._hash[place] == wanted
        fate = int(self._fate[place]) if known else 0
        if fate == _Fate.stored:
            return Verdict.last_token if end_tokens == lookup["queried_tokens"] else Verdict.not_used
        other = int(self._wanted_by[place]) if known else 0
        if other not in (0, lookup["request"]) and self._requests.is_live(other):
            return Verdict.not_finished_storing
        lost: dict[int, Verdict] = {_Fate.evicted: Verdict.evicted, _Fate.reset: Verdict.reset}
        return lost.get(fate, Verdict.never_stored)

    def _apply(self, changes: Rows) -> None:
        """Note what became of hashes; of several changes of one hash the last counts."""
        resets = np.flatnonzero(changes["op"] == BlockOp.reset)
        begin = 0
        for end in [*resets, len(changes)]:
            part = changes[begin:end]
            places = self._take(part["block_hash"])
            self._fate[places] = np.where(part["op"] == BlockOp.cache, _Fate.stored, _Fate.evicted)
            self._wanted_by[places] = 0
            if end < len(changes):
                self._fate[self._fate == _Fate.stored] = _Fate.reset
            begin = end + 1

    def _want(self, hashes: NDArray[np.uint64], request: int) -> None:
        self._wanted_by[self._take(hashes)] = request

    def _take(self, hashes: NDArray[np.uint64]) -> NDArray[np.intp]:
        """Places of hashes; one that was not known gets its place."""
        places = (hashes % PLACES).astype(np.intp)
        new = self._hash[places] != hashes
        self._hash[places[new]] = hashes[new]
        self._fate[places[new]] = 0
        self._wanted_by[places[new]] = 0
        return places


def _chains(hashes: Rows) -> dict[tuple[int, int], tuple[int, int]]:
    """First and last index of each admission's rows, by step and request."""
    if not len(hashes):
        return {}
    step, request = hashes["step"], hashes["request"]
    begins = np.flatnonzero(np.r_[True, (step[1:] != step[:-1]) | (request[1:] != request[:-1])])
    ends = [*begins[1:].tolist(), len(hashes)]
    return {
        (int(step[begin]), int(request[begin])): (begin, end) for begin, end in zip(begins.tolist(), ends, strict=True)
    }
