"""Copies of a profile and the transfers that they were part of."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.ingest.gpu.copies import Copy, StreamOfCopies, match_copies
from kvtrace.ingest.schema.trace import create_schema

PID, WORKER, ENGINE = 77, 3, 2
BLOCK = 4096


class Timeline:
    """Transfers and the copies that they cause, as a worker with a stream a transfer or one for all would."""

    def __init__(self, seed: int, streams: int) -> None:
        self.random = random.Random(seed)
        self.transfers: list[tuple[int, int, int, int, str]] = []  # transfer, submitted, finished, bytes, direction
        self.copies: list[tuple[int, int, int, int, int, str]] = []  # id, stream, start, end, bytes, direction
        self.owner: dict[int, int] = {}
        free = [0] * streams
        now = 0
        for transfer in range(1, 13):
            now += self.random.randrange(1, 2000)
            stream = transfer % streams
            direction = self.random.choice(("store", "load"))
            at, total = max(now + 100, free[stream]), 0
            for _ in range(self.random.randrange(1, 5)):
                total += BLOCK
                self._copy(stream, at, BLOCK, direction, transfer)
                at += 50
            free[stream] = at
            self.transfers.append((transfer, now, at + self.random.randrange(500), total, direction))
        for _ in range(40):  # the model's own small inputs, on its own stream
            self._copy(99, self.random.randrange(now + 1000), self.random.choice((64, 128, BLOCK - 1)), "load", None)

    def _copy(self, stream: int, at: int, size: int, direction: str, transfer: int | None) -> None:
        number = len(self.copies) + 1
        self.copies.append((number, stream, at, at + 50, size, direction))
        if transfer is not None:
            self.owner[number] = transfer

    def trace(self, *, without: set[int] = frozenset()) -> duckdb.DuckDBPyConnection:  # type: ignore[assignment]
        connection = duckdb.connect()
        create_schema(connection)
        connection.execute(f"INSERT INTO gpu_process (source_id, pid, process_id) VALUES (1, {PID}, {WORKER})")
        for transfer, submitted, finished, size, direction in self.transfers:
            tiers = ("gpu", "cpu") if direction == "store" else ("cpu", "gpu")
            connection.execute(
                "INSERT INTO transfer_submit (process_id, engine_id, transfer, submitted_ns, direction, from_tier, "
                "to_tier, bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [WORKER, ENGINE, transfer, submitted, direction, *tiers, size],
            )
            connection.execute(
                "INSERT INTO transfer_end (process_id, transfer, finished_ns, success) VALUES (?, ?, ?, true)",
                [WORKER, transfer, finished],
            )
        for number, stream, start, end, size, direction in self.copies:
            if number in without:
                continue
            kind = "device_to_host" if direction == "store" else "host_to_device"
            connection.execute(
                "INSERT INTO gpu_activity (activity_id, source_id, kind, start_ns, end_ns, pid, device, stream) "
                f"VALUES ({number}, 1, 'memcpy', {start}, {end}, {PID}, 0, {stream})"
            )
            connection.execute(
                f"INSERT INTO gpu_transfer (activity_id, bytes, copy_kind) VALUES ({number}, {size}, '{kind}')"
            )
        return connection


def found_in(connection: duckdb.DuckDBPyConnection) -> dict[int, int]:
    with connection:
        match_copies(connection, 1)
        return dict(
            connection.execute("SELECT activity_id, transfer FROM gpu_copy WHERE transfer IS NOT NULL").fetchall()
        )


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_every_copy_finds_its_transfer_and_the_models_inputs_find_none(seed: int, streams: int) -> None:
    timeline = Timeline(seed, streams)
    assert found_in(timeline.trace()) == timeline.owner


def test_a_transfer_whose_copies_the_profile_lost_has_none() -> None:
    timeline = Timeline(0, 3)
    last = timeline.transfers[-1][0]
    lost = {number for number, transfer in timeline.owner.items() if transfer == last}
    kept = {number: transfer for number, transfer in timeline.owner.items() if transfer != last}
    assert found_in(timeline.trace(without={min(lost)})) == kept


def test_a_trace_without_transfers_is_left_alone(tmp_path: Path) -> None:
    timeline = Timeline(0, 1)
    timeline.transfers.clear()
    assert found_in(timeline.trace()) == {}


@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    asked=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(1, 15)), max_size=6),
)
def test_what_is_taken_are_free_neighbours_in_time_that_add_up(
    sizes: list[int], asked: list[tuple[int, int, int]]
) -> None:
    stream = StreamOfCopies([Copy(place, place + 1, size, place) for place, size in enumerate(sizes)])
    taken: dict[int, int] = defaultdict(int)
    for start, end, total in asked:
        found = stream.take(start, end, total)
        places = [copy.activity_id for copy in found]
        possible = [
            (first, behind)
            for first in range(len(sizes))
            for behind in range(first + 1, len(sizes) + 1)
            if start <= first
            and behind <= end
            and sum(sizes[first:behind]) == total
            and not any(taken[place] for place in range(first, behind))
        ]
        assert bool(found) == bool(possible)
        if found:
            first = places[0]
            assert first == min(possible)[0]
            assert places == list(range(first, first + len(places)))
            assert sum(sizes[place] for place in places) == total
        for place in places:
            taken[place] += 1
    assert all(count == 1 for count in taken.values() if count)
