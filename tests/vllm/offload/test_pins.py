"""The ledger of pins against what the scheduler did, and against held minus used by a model of their own."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from tests.vllm.offload.conftest import Ledger

SOON_NS = 20_000_000
"""Between a scheduler's line in its log and kvtrace's record: the same call, on a busy machine."""


def test_ttl_pins_start_and_end_when_the_scheduler_says(ttl: Ledger) -> None:
    # GIVEN the scheduler's own log
    pinned = [line for line in ttl.own if line["op"] == "pin"]
    ended = {line["request"]: line for line in ttl.own if line["op"] == "unpin"}
    assert [ended[line["request"]]["reason"] for line in pinned[:2]] == ["used", "expired"]
    assert "forced" in {line["reason"] for line in ended.values()}
    # WHEN the recording is read
    found = defaultdict(list)
    for row in ttl.rows(
        "SELECT r.internal_id, p.* FROM pin p JOIN request r USING (request) WHERE cause = 'ttl' ORDER BY start_ns"
    ):
        found[row["internal_id"]].append(row)
    # THEN every pin is there, with its blocks, its time, its ends and why it ended, and no other
    assert set(found) == {line["request"] for line in pinned}
    for line in pinned:
        rows, end = found[line["request"]], ended.get(line["request"])
        assert sorted(row["block_id"] for row in rows) == sorted(line["blocks"])
        assert len(line["blocks"]) == 4
        for row in rows:
            assert row["requested_ttl_ns"] == line["seconds"] * 1e9
            assert abs(row["start_ns"] - line["ns"]) < SOON_NS
            assert row["end_reason"] == (end and end["reason"])
            assert end is None or abs(row["end_ns"] - end["ns"]) < SOON_NS


def test_the_next_turn_finds_what_was_pinned(ttl: Ledger) -> None:
    [second] = ttl.rows("SELECT local_cached_tokens FROM request WHERE session = 'a' ORDER BY queued_ns DESC LIMIT 1")
    assert second == {"local_cached_tokens": 128}


def test_the_policy_of_the_run_is_the_schedulers_own(ttl: Ledger) -> None:
    assert ttl.rows("SELECT scheduler, policy FROM run_setting") == [
        {"scheduler": "logging_ttl.LoggingScheduler", "policy": "LoggingScheduler"}
    ]


def test_a_slow_tool_pins_nothing(ttl: Ledger) -> None:
    sessions = ttl.rows("SELECT DISTINCT session FROM pin JOIN request USING (request) ORDER BY session")
    assert [row["session"] for row in sessions] == ["a", "b", "d", "e"]


def test_pins_of_connectors_are_the_transfers_blocks(simple_cpu: Ledger) -> None:
    """SimpleCPUOffload references every block it copies, from planning to completion."""
    for direction, reason in (("store", "saved"), ("load", "loaded")):
        pinned = simple_cpu.rows(
            f"SELECT block_id, end_reason FROM pin WHERE cause = 'connector' AND end_reason = '{reason}' ORDER BY ALL"
        )
        moved = simple_cpu.rows(
            f"SELECT gpu_block_id AS block_id, '{reason}' AS end_reason FROM transfer_block "
            f"WHERE direction = '{direction}' ORDER BY ALL"
        )
        assert pinned == moved
    assert simple_cpu.rows("SELECT count(*) AS n FROM pin WHERE end_ns IS NULL") == [{"n": 0}]


def test_an_asynchronous_load_pins_until_it_is_there(simple_cpu: Ledger) -> None:
    waits = simple_cpu.rows(
        "SELECT p.request, min(p.start_ns) AS start_ns, max(p.end_ns) AS end_ns, any_value(t.submitted_ns) AS sent, "
        "any_value(t.finished_ns) AS done FROM pin p JOIN transfer_block b ON b.request = p.request "
        "AND b.direction = 'load' JOIN transfer t ON t.transfer = b.transfer WHERE p.cause = 'async_load' GROUP BY 1"
    )
    assert len(waits) == 16, "eight prompts come again, twice"
    for wait in waits:
        assert wait["start_ns"] < wait["sent"] < wait["done"] < wait["end_ns"]


class Block:
    def __init__(self) -> None:
        self.references = 0
        self.users: dict[int, int] = defaultdict(int)
        self.since = 0
        self.held_ns = self.used_ns = 0


def held_and_used(ledger: Ledger) -> tuple[int, int]:
    """Block-nanoseconds held by anyone, and held by requests that run: event by event, without SQL's help."""
    events: list[tuple[int, int, dict[str, Any]]] = []
    for row in ledger.rows("SELECT * FROM block_event WHERE pool = 0 AND op IN ('allocate', 'hit', 'free')"):
        events.append((row["time_ns"], 1, row))
    for row in ledger.rows("SELECT * FROM request_event WHERE op IN ('schedule', 'resume', 'preempt', 'finish')"):
        events.append((row["time_ns"], 0, row))
    blocks: dict[int, Block] = defaultdict(Block)
    running: set[int] = set()

    def advance(now: int) -> None:
        for block in blocks.values():
            elapsed = now - block.since
            block.held_ns += elapsed * (block.references > 0)
            block.used_ns += elapsed * (
                block.references > 0 and any(request in running for request, n in block.users.items() if n)
            )
            block.since = now

    for now, _, row in sorted(events, key=lambda event: event[:2]):
        advance(now)
        if row["op"] in ("schedule", "resume"):
            running.add(row["request"])
        elif row["op"] in ("preempt", "finish"):
            running.discard(row["request"])
        else:
            block = blocks[row["block_id"]]
            block.since = now
            block.references = row["ref_count"]
            if row["request"] is not None:
                block.users[row["request"]] += -1 if row["op"] == "free" else 1
    [end] = ledger.rows(
        "SELECT greatest((SELECT max(time_ns) FROM block_event), (SELECT max(end_ns) FROM step_update)) AS ns"
    )
    advance(end["ns"])
    return sum(block.held_ns for block in blocks.values()), sum(block.used_ns for block in blocks.values())


@pytest.mark.parametrize("name", ["simple_cpu", "offloading", "ttl", "disk", "delaying"])
def test_what_held_blocks_adds_up_to_held_minus_used(name: str, request: Any) -> None:
    ledger: Ledger = request.getfixturevalue(name)
    held_ns, used_ns = held_and_used(ledger)
    by_holder = {
        row["held_by"]: row["ns"]
        for row in ledger.rows("SELECT held_by, sum(end_ns - start_ns)::BIGINT AS ns FROM block_hold GROUP BY 1")
    }
    running = by_holder.pop("running") + by_holder.pop("prefix_sharing", 0)
    assert running == used_ns
    assert sum(by_holder.values()) == held_ns - used_ns
    assert by_holder.get("unattributed", 0) < 0.01 * held_ns
    assert by_holder[{"ttl": "ttl", "delaying": "delayed_free"}.get(name, "async_load")] > 0


def test_a_delayed_free_lasts_from_the_requests_end_to_the_freeing_of_its_blocks(delaying: Ledger) -> None:
    pins = delaying.rows(
        "SELECT p.request, any_value(r.finished_ns) AS finished_ns, min(start_ns) AS start_ns, max(end_ns) AS end_ns, "
        "count(*) AS blocks, count(DISTINCT end_reason) AS reasons, any_value(end_reason) AS reason "
        "FROM pin p JOIN request r USING (request) WHERE cause = 'delayed_free' GROUP BY 1 ORDER BY 1"
    )
    freed = delaying.rows(
        "SELECT request, max(time_ns) AS freed_ns, count(*) AS blocks FROM block_event WHERE op = 'free' GROUP BY 1 "
        "ORDER BY 1"
    )
    assert len(pins) == 8
    for pin, free in zip(pins, freed, strict=True):
        assert (pin["request"], pin["blocks"]) == (free["request"], free["blocks"])
        assert pin["finished_ns"] < pin["start_ns"] < free["freed_ns"] < pin["end_ns"]
        assert (pin["reasons"], pin["reason"]) == (1, "saved")
    held = delaying.rows("SELECT sum(end_ns - start_ns) > 0 AS held FROM block_hold WHERE held_by = 'delayed_free'")
    assert held == [{"held": True}]


def test_a_streaming_sessions_blocks_are_pinned_while_it_waits_for_input(streaming: Ledger) -> None:
    # GIVEN a session of three inputs, each sent a while after the output to the one before had ended
    waits = streaming.own
    assert len(waits) == 2
    # THEN its blocks were pinned in each of the waits and in the one after the last output, until it was closed
    pins = streaming.rows(
        "SELECT pin, count(*) AS blocks, min(start_ns) AS start_ns, max(end_ns) AS end_ns, "
        "any_value(end_reason) AS why FROM pin WHERE cause = 'streaming' GROUP BY pin ORDER BY pin"
    )
    assert [(pin["blocks"], pin["why"]) for pin in pins] == [(2, "used"), (3, "used"), (4, "released")]
    for wait, pin in zip(waits, pins, strict=False):
        assert pin["start_ns"] < wait["output_ended_ns"] < wait["input_sent_ns"] < pin["end_ns"]
    held = streaming.rows("SELECT sum(end_ns - start_ns)::BIGINT AS ns FROM block_hold WHERE held_by = 'streaming'")
    assert held[0]["ns"] > 2 * 0.2e9 + 3 * 0.2e9
