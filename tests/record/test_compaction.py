"""Discarded records still in force, by the names of their fields."""

from __future__ import annotations

from typing import Any

from kvtrace.events import BLOCK_EVENT, BLOCK_TABLE, PIN_END, PIN_START, BlockOp, PinCause, PinEnd, TableOp
from kvtrace.retention.compaction import Compaction


def block(number: int, op: BlockOp, references: int, block_hash: int = 0) -> Any:
    row = {"time_ns": 1, "step": 7, "request": 2, "kv_group": 0, "pool": 0, "block_hash": block_hash}
    return BLOCK_EVENT.record(**row, block_id=number, op=op, ref_count=references)


def test_blocks_that_are_referenced_or_findable_stay() -> None:
    compaction, allocated, cached = Compaction(), block(3, BlockOp.allocate, 1), block(4, BlockOp.cache, 0, 99)
    gone = [block(5, BlockOp.allocate, 1), block(5, BlockOp.free, 0), block(6, BlockOp.cache, 0, 9)]
    compaction.fold(BLOCK_EVENT.name, [allocated, cached, *gone, block(6, BlockOp.evict, 0, 9)])
    assert compaction.records(BLOCK_EVENT.name) == [allocated, cached]
    assert compaction.strings() == {2}


def test_a_block_table_is_as_it_was_last_set() -> None:
    def entry(step: int, op: TableOp, position: int, number: int) -> Any:
        return BLOCK_TABLE.record(step=step, request=8, kv_group=0, op=op, position=position, block_id=number)

    compaction, kept = (
        Compaction(),
        [entry(2, TableOp.set, 0, 5), entry(2, TableOp.set, 1, 6), entry(3, TableOp.append, 2, 7)],
    )
    compaction.fold(BLOCK_TABLE.name, [entry(1, TableOp.set, 0, 4), *kept])
    assert compaction.records(BLOCK_TABLE.name) == kept


def test_pins_that_have_not_ended_stay() -> None:
    def start(pin: int, number: int) -> Any:
        row = {"time_ns": 1, "step": 1, "cause": PinCause.ttl, "request": 1, "requested_ttl_ns": -1}
        return PIN_START.record(**row, pin=pin, block_id=number)

    compaction = Compaction()
    compaction.fold(PIN_START.name, [start(1, 5), start(1, 6), start(6, 1)])
    compaction.fold(PIN_END.name, [PIN_END.record(time_ns=2, step=1, pin=1, block_id=6, reason=PinEnd.expired)])
    assert compaction.records(PIN_START.name) == [start(1, 5), start(6, 1)]
