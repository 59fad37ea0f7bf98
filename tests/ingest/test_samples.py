"""Requests with n > 1: the client's request and its samples are no gap in the recording."""

from __future__ import annotations

from pathlib import Path

import duckdb

from kvtrace.ingest.derive.requests import count_joins, insert_requests
from kvtrace.queries import Trace
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


def test_samples_have_the_tenant_and_the_adapter_of_their_client(tmp_path: Path) -> None:
    """Their engine knows the adapter alone; a recording of an older kvtrace has no more than that."""
    path = write_trace(tmp_path / "trace.duckdb")
    ids = ["a-1", "0_a-1", "1_a-1", "b-2", "0_b-2"]
    with duckdb.connect(str(path)) as connection:
        connection.execute("""
            INSERT INTO request_arrival (request, time_ns) VALUES (1, 4), (4, 5);
            INSERT INTO request_owner (request, time_ns, tenant, lora) VALUES (1, 4, 'acme', NULL);
            INSERT INTO request_queued (request, time_ns) VALUES (2, 5), (3, 5), (5, 6);
            INSERT INTO request_key (request, lora) VALUES (2, 'sql'), (5, 'sql');
        """)
        insert_requests(connection, ids)
        found = connection.execute("SELECT internal_id, tenant, lora FROM request ORDER BY request").fetchall()

    assert found == [
        ("a-1", "acme", None), ("0_a-1", "acme", "sql"), ("1_a-1", "acme", None),
        ("b-2", None, None), ("0_b-2", None, "sql"),
    ]  # fmt: skip


def test_a_turn_with_samples_is_one_turn_of_its_job(tmp_path: Path) -> None:
    """It ends with the last of them; a turn without a tag behind it is the second."""
    path = write_trace(
        tmp_path / "trace.duckdb",
        """
        INSERT INTO request (request, engine_id, internal_id, session, output_tokens, arrival_ns, queued_ns,
            scheduled_ns, first_token_ns, finished_ns, finish_reason)
        VALUES
            (1, NULL, 'a-1', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
            (2, 1, '0_a-1', 'job', 4, 0, 1, 2, 3, 4000000, 'length'),
            (3, 1, '1_a-1', 'job', 6, 0, 1, 2, 3, 6000000, 'length'),
            (4, 1, 'b-2', 'job', 5, 9000000, 9000001, 9000002, 9000003, 11000000, 'length');
        """,
    )
    with Trace(path) as trace:
        assert trace.sql("SELECT * FROM request_sample", format="arrow").to_pylist() == [
            {"request": 2, "parent": 1, "sample": 0},
            {"request": 3, "parent": 1, "sample": 1},
        ]
        [job] = trace.query("job-completion", format="arrow").to_pylist()
        assert (job["turns"], job["failed_turns"], job["output_tokens"], job["jct_ms"]) == (2, 0, 15, 11)
        turns = trace.query("turn-latency", format="arrow").to_pylist()
        assert [(row["turn_number"], row["turns"]) for row in turns] == [(1, 1), (2, 1)]
