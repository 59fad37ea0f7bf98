"""Compaction of discarded segments: records that are still in force, without which later ones mean nothing.

A retained record is unchanged and has its own time. Replaying the retained records gives the
state that replaying all of them gives (`tests/record/test_retention.py`): which blocks are referenced and by whom,
which are findable by which hash, block tables, who the requests are, pins and transfers that have not ended, and what
tiers hold.
Records that only describe discarded steps are discarded with them.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from kvtrace.events import (
    BATCH_ROW,
    BLOCK_EVENT,
    BLOCK_TABLE,
    EVENTS,
    PIN_END,
    PIN_START,
    REQUEST,
    REQUEST_ARRIVAL,
    REQUEST_EVENT,
    REQUEST_KEY,
    REQUEST_OWNER,
    REQUEST_QUEUED,
    STRING,
    TIER_BLOCK,
    TRANSFER_END,
    TRANSFER_SUBMIT,
    BlockOp,
    RequestOp,
    TableOp,
    TierOp,
)

Record = Any
"""A captured record by the names of its fields: `Event.record`."""


class Row(NamedTuple):
    """A retained record and its place among those of its event."""

    place: int
    record: Record


class _Block:
    """A block's records in force: its references, the last change of their count, and the hashes that lead to it."""

    __slots__ = ("hashes", "last", "references")

    def __init__(self) -> None:
        self.references: list[Row] = []
        self.last: Row | None = None
        self.hashes: dict[Any, Row] = {}


class Blocks:
    """`block_event`: replayed, block by block."""

    def __init__(self) -> None:
        self._blocks: defaultdict[tuple[int, int], _Block] = defaultdict(_Block)

    def fold(self, rows: Iterable[Row]) -> None:
        """Take up records in order."""
        blocks = self._blocks
        cache, evict, reset, free = BlockOp.cache, BlockOp.evict, BlockOp.reset, BlockOp.free
        for row in rows:
            record = row.record
            if record.op == reset:
                for (its_pool, _), block in blocks.items():
                    if its_pool == record.pool:
                        block.hashes.clear()
                continue
            block = blocks[record.pool, record.block_id]
            if record.op == cache:
                block.hashes[record.block_hash, record.kv_group] = row
            elif record.op == evict:
                block.hashes.pop((record.block_hash, record.kv_group), None)
            else:
                block.last = row
                if record.op != free:
                    block.references.append(row)
                else:
                    _release(block.references, record.request, record.ref_count)

    def rows(self) -> Iterator[Row]:
        """The records in force. A block that nothing refers to and no hash leads to is as at the beginning."""
        for block in self._blocks.values():
            if block.hashes or _in_use(block):
                found = [*block.references, *block.hashes.values(), *([block.last] if block.last else [])]
                yield from {row.place: row for row in found}.values()

    def forget(self) -> None:
        """Drop blocks that are as at the beginning."""
        for key in [key for key, block in self._blocks.items() if not block.hashes and not _in_use(block)]:
            del self._blocks[key]


def _in_use(block: _Block) -> bool:
    return block.last is not None and block.last.record.ref_count != 0


def _release(rows: list[Row], request: int, ref_count: int) -> None:
    """Remove a request's reference; where nobody is told, the oldest of those that are too many."""
    for index, row in enumerate(rows):
        if row.record.request == request:
            del rows[index]
            break
    del rows[: max(0, len(rows) - ref_count)]


class Requests:
    """Requests and their block tables, until they have ended and no retained record is older than that."""

    EVENTS = (REQUEST_QUEUED.name, REQUEST_EVENT.name, REQUEST_KEY.name, BLOCK_TABLE.name)

    def __init__(self) -> None:
        self._rows: dict[str, defaultdict[int, list[Row]]] = {event: defaultdict(list) for event in self.EVENTS}
        self._ended_ns: dict[int, int] = {}

    def fold(self, event: str, rows: Iterable[Row]) -> None:
        """Take up records in order."""
        mine = self._rows[event]
        for row in rows:
            record, number = row.record, row.record.request
            if event == BLOCK_TABLE.name and record.op == TableOp.set:
                if mine[number] and mine[number][-1].record.step != record.step:
                    mine[number].clear()  # what was there before is void
            elif event == REQUEST_EVENT.name and record.op == RequestOp.finish:
                self._ended_ns[number] = record.time_ns
            mine[number].append(row)

    def forget(self, oldest_ns: int) -> set[int]:
        """Drop those that ended before `oldest_ns`, where the oldest remaining record may be; returns their numbers."""
        gone = {number for number, ended_ns in self._ended_ns.items() if ended_ns < oldest_ns}
        for number in gone:
            del self._ended_ns[number]
            for rows in self._rows.values():
                rows.pop(number, None)
        return gone

    def rows(self, event: str) -> Iterator[Row]:
        """The records in force."""
        return itertools.chain.from_iterable(self._rows[event].values())


class Pairs:
    """Beginnings whose end has not come, and ends whose beginning is not discarded yet."""

    def __init__(self, begin: str, end: str, *keys: str) -> None:
        self.events = (begin, end)
        self._key = attrgetter(*keys)
        self._open: dict[str, dict[Any, Row]] = {event: {} for event in self.events}

    def fold(self, event: str, rows: Iterable[Row]) -> None:
        """Take up records in order."""
        other = self._open[self.events[event == self.events[0]]]
        for row in rows:
            key = self._key(row.record)
            if other.pop(key, None) is None:
                self._open[event][key] = row

    def rows(self, event: str) -> Iterator[Row]:
        """The records in force."""
        return iter(self._open[event].values())


class Tiers:
    """`tier_block`: what lies in offload tiers."""

    def __init__(self) -> None:
        self._stored: defaultdict[tuple[int, int], dict[tuple[int, int], list[Row]]] = defaultdict(dict)

    def fold(self, rows: Iterable[Row]) -> None:
        """Take up records in order."""
        for row in rows:
            record = row.record
            lies = self._stored[record.connector, record.tier]
            key = (record.tier_block_id, 0) if record.tier_block_id >= 0 else (-1, record.block_hash)
            if record.op == TierOp.reset:
                lies.clear()
            elif record.op in (TierOp.evict, TierOp.drop):
                lies.pop(key, None)
            elif record.op == TierOp.write:
                lies[key] = [row]
            elif record.op == TierOp.store:
                lies[key] = [*lies.get(key, [])[:1], row]

    def rows(self) -> Iterator[Row]:
        """The records in force."""
        return (row for lies in self._stored.values() for rows in lies.values() for row in rows)


class Compaction:
    """Records still in force of one process's discarded segments."""

    def __init__(self) -> None:
        self._places = itertools.count()
        self._blocks = Blocks()
        self._requests = Requests()
        self._arrivals: dict[str, list[Row]] = {REQUEST_ARRIVAL.name: [], REQUEST_OWNER.name: []}
        self._pairs = [
            Pairs(PIN_START.name, PIN_END.name, "pin", "block_id"),
            Pairs(TRANSFER_SUBMIT.name, TRANSFER_END.name, "transfer"),
        ]
        self._tiers = Tiers()
        self._batch: dict[int, list[Row]] = {}

    @staticmethod
    def takes(event: str) -> bool:
        """Return whether records of an event may outlive their segment."""
        return event in _COMPACTED

    def fold(self, event: str, records: Iterable[Record]) -> None:
        """Take up the whole records of a segment, after those of the one before it."""
        rows = map(Row, self._places, records)
        if event == BLOCK_EVENT.name:
            self._blocks.fold(rows)
        elif event in Requests.EVENTS:
            self._requests.fold(event, rows)
        elif event in self._arrivals:
            self._arrivals[event] += rows
        elif event == TIER_BLOCK.name:
            self._tiers.fold(rows)
        elif event == BATCH_ROW.name:
            for row in rows:
                engine = row.record.engine_id
                if self._batch.get(engine, [row])[0].record.step != row.record.step:
                    self._batch[engine].clear()
                self._batch.setdefault(engine, []).append(row)
        else:
            for pairs in self._pairs:
                if event in pairs.events:
                    pairs.fold(event, rows)

    def forget(self, oldest_ns: int) -> set[int]:
        """Drop records that no remaining record can refer to: none is older than `oldest_ns` (CLOCK_MONOTONIC).

        Returns:
            The numbers of requests that are forgotten.
        """
        self._blocks.forget()
        return self._requests.forget(oldest_ns)

    def forget_arrivals(self, forgotten: set[int], before_ns: int) -> None:
        """Drop arrivals of forgotten requests, whose end another process saw, and those too old to matter.

        Their tenants go with them.
        """
        for rows in self._arrivals.values():
            rows[:] = [row for row in rows if row.record.time_ns >= before_ns and row.record.request not in forgotten]

    def records(self, event: str) -> list[Record]:
        """The retained records of an event, in the order they were recorded in."""
        return [row.record for row in sorted(self._rows(event))]

    def strings(self) -> set[int]:
        """Numbers of the interned strings that retained records need."""
        needed = set()
        for event in _COMPACTED:
            names = [field.name for field in EVENTS[event].fields if field.type in (REQUEST, STRING)]
            needed |= {getattr(row.record, name) for row in self._rows(event) for name in names}
        return needed - {0}

    def _rows(self, event: str) -> Iterator[Row]:
        if event == BLOCK_EVENT.name:
            return self._blocks.rows()
        if event in Requests.EVENTS:
            return self._requests.rows(event)
        if event in self._arrivals:
            return iter(self._arrivals[event])
        if event == TIER_BLOCK.name:
            return self._tiers.rows()
        if event == BATCH_ROW.name:
            return itertools.chain.from_iterable(self._batch.values())
        return itertools.chain.from_iterable(pairs.rows(event) for pairs in self._pairs if event in pairs.events)


_COMPACTED = frozenset(
    {BLOCK_EVENT.name, *Requests.EVENTS, REQUEST_ARRIVAL.name, REQUEST_OWNER.name, TIER_BLOCK.name, BATCH_ROW.name}
    | {PIN_START.name, PIN_END.name, TRANSFER_SUBMIT.name, TRANSFER_END.name}
)
