"""LRU stack distances of block references, exact, in O(N log N) array operations.

The distance of a reference is the number of other blocks referenced since the last reference of its block: an LRU cache
finds the block exactly if it holds more blocks than that. With p the place of the last reference and S the place where
the present event begins, those blocks are the references between p and S less those whose block came again before S:

    distance = (S - p - 1) - (references before S whose own last reference was after p)

The second term is a count of inversions, which a merge sort over places counts for all references at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kvtrace.errors import KvtraceError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

COLD = -1
"""The distance of a block's first reference: no cache would have found it."""

LONGEST = 1 << 31


@dataclass(frozen=True)
class References:
    """Blocks in the order in which they were referenced; `of` makes them.

    References of one event happen at once: whether a block is found depends on what was referenced before the event.
    Within an event, later references are the more recent ones (a prompt is given from its tail to its head, since its
    tail is evicted first). References that are not `counted` only make a block recent, as its release does.

    Args:
        key: uint64 [N], which block. Equal keys are the same content.
        event: int64 [N], ascending. Default: each reference is an event of its own.
        counted: bool [N], the references that are lookups. Default: all.
        uncached_lookups: Lookups of blocks that nobody had stored by then; they are in none of the arrays. In a sample,
            its share of them.

    Raises:
        KvtraceError: the arrays' lengths differ, or events are not in order.
    """

    key: NDArray[np.uint64]
    event: Ints
    counted: Bools
    uncached_lookups: float = 0

    @classmethod
    def of(cls, key: Any, event: Any = None, counted: Any = None, uncached_lookups: float = 0) -> References:
        """References from anything numpy makes arrays of. A block that an event has twice is taken once.

        Args:
            key: As the class's.
            event: As the class's; None for the default.
            counted: As the class's; None for the default.
            uncached_lookups: As the class's.
        """
        keys = np.asarray(key).astype(np.uint64, copy=False)
        events = np.arange(len(keys)) if event is None else np.asarray(event, np.int64)
        flags = np.ones(len(keys), bool) if counted is None else np.asarray(counted, bool)
        references = cls(keys, events, flags, uncached_lookups)
        again = references.previous >= references.event_start
        return cls(keys[~again], events[~again], flags[~again], uncached_lookups) if again.any() else references

    def __post_init__(self) -> None:
        if not len(self.key) == len(self.event) == len(self.counted) < LONGEST:
            raise KvtraceError("references: key, event and counted must have one length, below 2**31")
        if len(self.event) and bool((np.diff(self.event) < 0).any()):
            raise KvtraceError("references: events must be in ascending order")

    @property
    def lookups(self) -> float:
        """References that count, those of blocks nobody had stored included."""
        return int(self.counted.sum()) + self.uncached_lookups

    @cached_property
    def event_start(self) -> Ints:
        """Index at which each reference's event begins: int64 [N]."""
        starts = np.flatnonzero(np.diff(self.event, prepend=self.event[:1] - 1))
        return np.repeat(starts, np.diff(starts, append=len(self.event)))

    @cached_property
    def previous(self) -> Ints:
        """The last reference of the same block before each one: int64 [N]; COLD if there is none."""
        order = grouped(self.key)
        ordered = self.key[order]
        same = ordered[1:] == ordered[:-1]
        previous = np.full(len(order), COLD, np.int64)
        previous[order[1:][same]] = order[:-1][same]
        return previous

    @cached_property
    def blocks(self) -> int:
        """Different blocks."""
        return int((self.previous == COLD).sum())


def grouped(key: NDArray[np.uint64]) -> Ints:
    """Places of an array so that equal keys stand together, in the order in which they came: int64 [N].

    Numbers in place of keys, each with its place behind it, sort several times as fast as numpy's stable argsort.
    """
    words = pa.array(key).dictionary_encode().indices.to_numpy().astype(np.int64) << 32
    words |= np.arange(len(key))
    words.sort()
    words &= (1 << 32) - 1
    return words


def lru_distances(references: References) -> Ints:
    """Return LRU stack distances: other blocks referenced since a reference's block was, when its event began.

    Returns:
        int64 [N]; COLD where the block was not referenced before.
    """
    previous, start = references.previous, references.event_start
    warm = np.flatnonzero(previous != COLD)
    last = previous[warm]
    distances = np.full(len(previous), COLD, np.int64)
    distances[warm] = start[warm] - last - 1 - _later_and_earlier(_places(references, warm, last), last, len(previous))
    return distances


def _places(references: References, warm: Ints, last: Ints) -> Ints:
    """An order of the warm references in which none of an event is inverted with another of the event.

    What is referenced in the same event does not come between. Prompts given from tail to head are in such an order.
    """
    event = references.event[warm]
    if not bool(((np.diff(event) == 0) & (np.diff(last) < 0)).any()):
        return np.arange(len(warm))
    places = np.empty(len(warm), np.int64)
    places[np.lexsort((last, event))] = np.arange(len(warm))
    return places


def _later_and_earlier(places: Ints, last: Ints, references: int) -> Ints:
    """For each reference, how many at smaller places have a greater `last`: int64, in the order given."""
    by_last = np.full(references, COLD, np.int64)
    by_last[last] = places
    counted = _smaller_before(by_last[by_last != COLD][::-1])
    # What counts are sorted by is the place; the references may be in another order.
    return counted[places]


def _smaller_before(permutation: Ints) -> Ints:
    """For each number 0..M-1, how many smaller ones stand before it in the permutation: int64 [M], by number.

    A merge sort from the top: at each bit, numbers are divided by that bit, keeping their order, within groups that
    agree in all higher bits. A number with the bit set passes the smaller ones before it that have it unset; how many
    is what its position in the group lacks to its rank among the set ones. Counts ride in the upper half of the word.
    """
    numbers = len(permutation)
    words = permutation.astype(np.int64)
    divided = np.empty_like(words)
    for bit in reversed(range(max(numbers - 1, 0).bit_length())):
        group = 2 << bit
        whole = numbers // group * group
        _divide(words[:whole].reshape(-1, group), divided[:whole].reshape(-1, 2, group // 2), bit)
        _divide_rest(words[whole:], divided[whole:], bit)
        words, divided = divided, words
    return words >> 32


def _divide(groups: Ints, halves: Ints, bit: int) -> None:
    """Divide whole groups [G, 2H] into halves [G, 2, H]: those without the bit, those with it."""
    count, group = groups.shape
    is_set = (groups & (1 << bit)) != 0
    passed = np.flatnonzero(is_set).reshape(count, group // 2)
    halves[:, 1] = groups.reshape(-1)[passed]
    halves[:, 0] = groups[~is_set].reshape(count, group // 2)
    passed -= np.arange(count)[:, None] * group
    passed -= np.arange(group // 2)
    passed <<= 32
    halves[:, 1] += passed


def _divide_rest(group: Ints, divided: Ints, bit: int) -> None:
    """Divide the last group, which has not all of its numbers."""
    is_set = (group & (1 << bit)) != 0
    passed = np.flatnonzero(is_set)
    unset = len(group) - len(passed)
    divided[:unset] = group[~is_set]
    divided[unset:] = group[passed] + ((passed - np.arange(len(passed))) << 32)
