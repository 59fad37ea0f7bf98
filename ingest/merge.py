"""Recordings of several hosts on one time base: which clocks there are, and what their hosts told each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from kvtrace.errors import KvtraceError
from kvtrace.events import EVENTS, PIN_END, PIN_START, REQUEST_ARRIVAL, REQUEST_EVENT, REQUEST_QUEUED, REQUEST_REMOTE
from kvtrace.format import layout
from kvtrace.format.reader import ProcessRecording, Recording
from kvtrace.ingest import client, clock, run_tables
from kvtrace.ingest.derive import requests
from kvtrace.ingest.hosts import Correction, Messages, estimate
from kvtrace.ingest.schema.trace import create_schema
from kvtrace.ingest.streams import Streams

_TOLD = (REQUEST_ARRIVAL, REQUEST_QUEUED, REQUEST_REMOTE, REQUEST_EVENT, PIN_START, PIN_END)
"""Events that say what went from host to host."""

_BETWEEN_ENGINES = """
WITH arrived AS (
    SELECT request, min(time_ns) AS ns, arg_min(process_id, time_ns) AS process_id
    FROM request_arrival GROUP BY request
), said AS (
    SELECT h.prefill_engine_id AS sender, coalesce(a.process_id, d.engine_id) AS receiver,
        coalesce(a.ns, d.queued_ns) - p.finished_ns AS took_ns
    FROM handover h JOIN request p ON p.request = h.prefill_request JOIN request d ON d.request = h.decode_request
        LEFT JOIN arrived a ON a.request = h.decode_request
    WHERE p.finish_reason IN ('stop', 'length')
    UNION ALL
    -- The prefill engine keeps the blocks until the other one has said that it read them.
    SELECT h.decode_engine_id, h.prefill_engine_id, max(pin.end_ns) - any_value(d.queued_ns)
    FROM handover h JOIN request d ON d.request = h.decode_request
        JOIN pin ON pin.engine_id = h.prefill_engine_id AND pin.request = h.prefill_request
    WHERE h.matched_by <> 'external_id' AND pin.cause = 'delayed_free' AND pin.end_reason = 'saved'
    GROUP BY h.decode_engine_id, h.prefill_engine_id, h.decode_request
)
SELECT s.host_clock, r.host_clock, min(took_ns), count(took_ns)
FROM said JOIN process s ON s.process_id = sender JOIN process r ON r.process_id = receiver
WHERE s.host_clock <> r.host_clock GROUP BY ALL HAVING count(took_ns) > 0 ORDER BY ALL
"""

_WITH_CLIENT = """
WITH arrived AS (
    SELECT request, min(time_ns) AS ns, arg_min(process_id, time_ns) AS process_id
    FROM request_arrival GROUP BY request
), once AS (
    SELECT request_id, any_value(send_ns) AS send_ns, any_value(first_token_ns) AS first_token_ns,
        any_value(last_token_ns) AS last_token_ns
    FROM client_request GROUP BY request_id HAVING count(*) = 1
), met AS (
    SELECT c.*, r.*, coalesce(a.ns, r.queued_ns) AS at_ns, coalesce(a.process_id, r.engine_id) AS at_process,
        count(*) OVER (PARTITION BY c.request_id) AS engines
    FROM once c JOIN request r ON r.external_id IN (c.request_id, c.request_id || '-0')
        LEFT JOIN arrived a USING (request)
), said AS (
    SELECT $1 AS sender, p.host_clock AS receiver, at_ns - send_ns AS took_ns
    FROM met JOIN process p ON p.process_id = at_process
    UNION ALL
    SELECT p.host_clock, $1, unnest([
        CASE WHEN finish_reason IN ('stop', 'length') THEN met.last_token_ns - met.finished_ns END,
        CASE WHEN engines = 1 THEN met.first_token_ns - met.first_token_ns_1 END])
    FROM met JOIN process p ON p.process_id = met.engine_id
)
SELECT sender, receiver, min(took_ns), count(took_ns) FROM said
WHERE sender <> receiver GROUP BY ALL HAVING count(took_ns) > 0 ORDER BY ALL
"""


@dataclass
class Clocks:
    """The clocks of some recordings, numbered from 1, and their corrections.

    Attributes:
        of_process: Clock of each process.
        of_client: Clock of what clients saw, by recording.
        hosts: Host name and first recording of each clock.
    """

    of_process: list[int] = field(default_factory=list)
    of_client: dict[int, int] = field(default_factory=dict)
    hosts: list[tuple[str | None, int]] = field(default_factory=list)
    corrections: dict[int, Correction] = field(default_factory=dict)

    def correction_ns(self, clock_: int | None) -> int:
        """Return the nanoseconds to add to a clock's time; 0 for none."""
        return self.corrections[clock_].correction_ns if clock_ is not None else 0

    def warnings(self) -> list[str]:
        """Say what the corrections do not explain."""
        found = []
        for number, correction in self.corrections.items():
            host, recording = self.hosts[number - 1]
            where = f"the clock of {host or 'the client'} (recording {recording})"
            if contradiction := correction.contradiction_ns:
                found.append(
                    f"{where}: messages contradict each other by {contradiction / 1e6:.3f} ms, so no constant "
                    "correction fits: clocks drifted or were set while it was recorded"
                )
            if correction.uncertainty_ns is None:
                found.append(
                    f"{where} could not be compared with the first host's from both sides; times between them are as "
                    "good as both hosts' own time: give --clock-offset, or record a client that speaks to both"
                )
        return found


def find_clocks(recordings: Sequence[Recording], processes: Sequence[ProcessRecording]) -> Clocks:
    """Number the clocks in the order of the recordings. Processes of one boot of one host share one."""
    found, numbers = Clocks(), dict[str, int]()

    def number(key: str, host: str | None, recording: int) -> int:
        if key not in numbers:
            numbers[key] = len(numbers) + 1
            found.hosts.append((host, recording))
        return numbers[key]

    for process in processes:
        host = process.facts.get("host")
        found.of_process.append(number(clock.host_of(process), None if host is None else str(host), process.recording))
    for index, recording in enumerate(recordings, 1):
        if (recording.run_dir / layout.CLIENT).exists():
            own = [
                (clock_, process)
                for clock_, process in zip(found.of_process, processes, strict=True)
                if process.recording == index
            ]
            own.sort(key=lambda pair: "frontend" not in pair[1].roles)
            found.of_client[index] = own[0][0] if own else number(f"client of {index}", None, index)
    return found


def correct(
    clocks: Clocks,
    recordings: Sequence[Recording],
    processes: Sequence[ProcessRecording],
    given: Mapping[int, int],
) -> None:
    """Find the clocks' corrections: those `given` (by recording, ns), the others by what the hosts told each other."""
    numbers = range(1, len(clocks.hosts) + 1)
    fixed: dict[int, int] = {}
    for recording, correction_ns in given.items():
        of = {c for c, p in zip(clocks.of_process, processes, strict=True) if p.recording == recording}
        of |= {clocks.of_client[recording]} if recording in clocks.of_client else set()
        if 1 in of:
            raise KvtraceError(
                f"{recordings[recording - 1].run_dir} is on the first recording's host, whose clock the others are "
                "compared with; name another in --clock-offset, or name the recordings in another order",
                2,
            )
        fixed |= dict.fromkeys(of, correction_ns)
    messages = _messages(clocks, recordings, processes) if len(numbers) > 1 else []
    clocks.corrections = estimate(numbers, messages, fixed)


def _messages(clocks: Clocks, recordings: Sequence[Recording], processes: Sequence[ProcessRecording]) -> list[Messages]:
    by_host = clock.offsets(processes)
    offsets_ns = [by_host[clock.host_of(process)] for process in processes]
    with duckdb.connect() as scratch:
        create_schema(scratch)
        run_tables.insert_processes(scratch, processes, offsets_ns, clocks.of_process)
        streams = Streams(processes, offsets_ns)
        streams.import_events(scratch, [event.name for event in _TOLD if event.name in EVENTS])
        requests.insert_requests(scratch, streams.requests.internal_ids)
        found = [Messages(*row) for row in scratch.execute(_BETWEEN_ENGINES).fetchall()]
        for index, recording in enumerate(recordings, 1):
            if index in clocks.of_client:
                client.import_client(scratch, recording.run_dir, [], index)
                rows = scratch.execute(_WITH_CLIENT, [clocks.of_client[index]]).fetchall()
                found += [Messages(*row) for row in rows]
                scratch.execute("DELETE FROM client_request")
    return found


def insert_hosts(connection: duckdb.DuckDBPyConnection, clocks: Clocks) -> None:
    """Fill table `host_clock`."""
    rows = []
    for number, (host, recording) in enumerate(clocks.hosts, 1):
        each = clocks.corrections[number]
        bounds = each.correction_ns, each.uncertainty_ns, each.earliest_ns, each.latest_ns
        rows.append((number, host, recording, *bounds, each.messages, each.method))
    run_tables.insert_rows(connection, "host_clock", rows)


def correct_arrivals(connection: duckdb.DuckDBPyConnection) -> None:
    """Correct the one time that vLLM read itself: `arrival_ns`, by the clock of the process that assigned the id."""
    connection.execute(
        """
        UPDATE request_queued SET arrival_ns = arrival_ns + c.correction_ns
        FROM (
            SELECT q.rowid AS place, h.correction_ns
            FROM request_queued q
                LEFT JOIN (SELECT request, any_value(process_id) AS process_id FROM request_arrival GROUP BY request) a
                    USING (request)
                JOIN process p ON p.process_id = coalesce(a.process_id, q.engine_id)
                JOIN host_clock h USING (host_clock)
            WHERE h.correction_ns <> 0
        ) c WHERE c.place = request_queued.rowid AND arrival_ns <> 0
        """
    )


def directories(given: Sequence[Path], offsets: Mapping[str, int]) -> dict[int, int]:
    """Return the recordings (from 1) that `--clock-offset RUN=ns` names, by path or by the directory's name.

    Raises:
        KvtraceError: A name is no recording's, or several have it.
    """
    found = {}
    for name, correction_ns in offsets.items():
        numbers = [n for n, path in enumerate(given, 1) if Path(name) == path or name == path.resolve().name]
        if len(numbers) != 1:
            known = ", ".join(map(str, given))
            raise KvtraceError(f"--clock-offset {name}: expected one of the recordings ({known}), by path or name", 2)
        found[numbers[0]] = correction_ns
    return found
