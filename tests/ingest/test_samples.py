"""Requests with n > 1: the client's request and its samples are no gap in the recording."""

from __future__ import annotations

from pathlib import Path

import duckdb

from kvtrace.ingest.derive.requests import count_joins
from tests.traces import write_trace

REQUESTS = """
    INSERT INTO request (request, internal_id, queued_ns) VALUES
        (1, 'cmpl-a-0-11', NULL),
        (2, '0_cmpl-a-0-11', 5), (3, '1_cmpl-a-0-11', 5), (4, 'cmpl-b-0-22', 6), (5, '7_x', 7),
        (6, 'cmpl-lost-0-33', NULL);
    INSERT INTO request_arrival (request, time_ns) VALUES (1, 4), (4, 5), (6, 6);
    INSERT INTO request_queued (request, time_ns) VALUES (2, 5), (3, 5), (4, 6), (5, 7);
"""


def test_a_request_and_its_samples_are_not_unmatched(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.duckdb")
    with duckdb.connect(str(path)) as connection:
        connection.execute(REQUESTS)
        joins = {join.name: join for join in count_joins(connection)}

    assert joins["request_arrival -> request_queued"][1:] == (1, 1), "request 6 never came to an engine"
    assert joins["request_queued -> request_arrival"][1:] == (1, 1), "request 5 is no sample: it has no parent"
