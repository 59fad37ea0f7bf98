"""Matches a profile's copies with offload transfers: the bytes must add up, exactly, on one stream.

A worker hands a transfer's copies to one stream, one after the other, between its submission and the moment it knows
of the end. So they are neighbours in their stream, of the transfer's direction, within that time, and sum to its bytes.
A transfer whose bytes are unknown, or whose copies the profile lost, stays without copies. What this cannot see: copies
lost while transfers of equal copies queue on one stream, where the next transfer's make up the sum.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import duckdb
import pyarrow as pa

_TRANSFERS = """
    SELECT t.process_id, t.engine_id, t.transfer, t.submitted_ns, t.finished_ns, t.bytes,
        CASE WHEN t.to_tier = 'gpu' THEN 'host_to_device' ELSE 'device_to_host' END AS copy_kind
    FROM transfer t
    WHERE (t.from_tier = 'gpu' OR t.to_tier = 'gpu') AND t.bytes > 0 AND t.finished_ns IS NOT NULL
        AND t.process_id IN (SELECT process_id FROM gpu_process WHERE source_id = ?)
    ORDER BY t.submitted_ns, t.engine_id, t.transfer
"""
_COPIES = """
    SELECT g.process_id, m.copy_kind::VARCHAR, a.stream, a.start_ns, a.end_ns, m.bytes, a.activity_id
    FROM gpu_activity a
        JOIN gpu_transfer m USING (activity_id)
        JOIN gpu_process g ON g.source_id = a.source_id AND g.pid = a.pid
    WHERE a.source_id = ? AND a.kind = 'memcpy' AND m.copy_kind IN ('host_to_device', 'device_to_host')
        AND g.process_id IN (SELECT process_id FROM transfer_submit)
    ORDER BY a.start_ns, a.activity_id
"""


class Copy(NamedTuple):
    """A copy on a stream."""

    start_ns: int
    end_ns: int
    size_bytes: int
    activity_id: int


class StreamOfCopies:
    """The copies of one direction on one stream, in order; each can be taken once."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        self._copies = copies
        self._starts = [copy.start_ns for copy in copies]
        self._bytes_before = [0, *accumulate(copy.size_bytes for copy in copies)]
        self._taken = [False] * len(copies)

    def take(self, submitted_ns: int, finished_ns: int, size_bytes: int) -> list[Copy]:
        """The earliest free neighbours within that time that sum to `size_bytes`; nothing if there are none."""
        low = bisect_left(self._starts, submitted_ns)
        high = bisect_right(self._starts, finished_ns)
        for first in range(low, high):
            # Sums only grow, so the one place at which the sum can fit is found by its value.
            behind = bisect_left(self._bytes_before, self._bytes_before[first] + size_bytes, first + 1, high + 1)
            if behind > high or self._bytes_before[behind] - self._bytes_before[first] != size_bytes:
                continue
            found = range(first, behind)
            if self._copies[behind - 1].end_ns <= finished_ns and not any(self._taken[index] for index in found):
                for index in found:
                    self._taken[index] = True
                return [self._copies[index] for index in found]
        return []


def match_copies(connection: duckdb.DuckDBPyConnection, source_id: int) -> None:
    """Fill table `gpu_copy_transfer` for a source whose activities and `gpu_process` rows are there."""
    transfers = connection.execute(_TRANSFERS, [source_id]).fetchall()
    if not transfers:
        return
    streams: dict[tuple[int, str], dict[int, list[Copy]]] = defaultdict(lambda: defaultdict(list))
    for process, kind, stream, *copy in connection.execute(_COPIES, [source_id]).fetchall():
        streams[process, kind][stream].append(Copy(*copy))
    queues = {
        key: [StreamOfCopies(copies) for _, copies in sorted(of_streams.items(), key=str)]
        for key, of_streams in streams.items()
    }
    rows = list(_matched(transfers, queues))
    if not rows:
        return
    names = ("activity_id", "process_id", "engine_id", "transfer")
    types = (pa.int64(), pa.int32(), pa.int32(), pa.int64())
    values = zip(*rows, strict=True)
    batch = pa.table({name: pa.array(of, type_) for name, of, type_ in zip(names, values, types, strict=True)})
    connection.register("matched_copies", batch)
    try:
        connection.execute("INSERT INTO gpu_copy_transfer BY NAME FROM matched_copies")
    finally:
        connection.unregister("matched_copies")


def _matched(
    transfers: Sequence[tuple[int, int, int, int, int, int, str]],
    queues: dict[tuple[int, str], list[StreamOfCopies]],
) -> Iterator[tuple[int, int, int, int]]:
    for process, engine, transfer, submitted_ns, finished_ns, size_bytes, kind in transfers:
        for queue in queues.get((process, kind), []):
            if found := queue.take(submitted_ns, finished_ns, size_bytes):
                yield from ((copy.activity_id, process, engine, transfer) for copy in found)
                break
