"""Recordings of several hosts on one clock, and requests of one id in several engines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.capture.recorder import Recorder
from kvtrace.errors import KvtraceError
from kvtrace.events import FORWARD, REQUEST_ARRIVAL, REQUEST_EVENT, REQUEST_QUEUED, FinishReason, RequestOp
from kvtrace.format import layout
from kvtrace.format.reader import open_recording
from kvtrace.ingest import clock
from kvtrace.ingest.hosts import Messages, estimate
from kvtrace.ingest.run import Summary, ingest
from tests.ingest.other_host import on_another_host

MS = 1_000_000
READING_NS = MS // 2
"""Largest difference of two recorders' readings of one clock, on a busy machine."""

TRIES = st.lists(st.tuples(st.integers(0, 50 * MS), st.booleans()), min_size=1, max_size=30)


@given(st.integers(-(10**12), 10**12), TRIES)
def test_the_true_offset_lies_within_the_stated_uncertainty(behind_ns: int, messages: list[tuple[int, bool]]) -> None:
    """Clock 2 is behind; each message takes some time one way or the other, as hand-overs do."""
    least: dict[tuple[int, int], int] = {}
    for took_ns, forth in messages:
        ends, seen_ns = ((1, 2), took_ns - behind_ns) if forth else ((2, 1), took_ns + behind_ns)
        least[ends] = min(seen_ns, least.get(ends, seen_ns))
    found = estimate([1, 2], [Messages(*ends, seen, 1) for ends, seen in least.items()], {})[2]
    assert found.earliest_ns is None or found.earliest_ns <= behind_ns
    assert found.latest_ns is None or behind_ns <= found.latest_ns
    assert found.contradiction_ns == 0
    if len(least) == 2:
        assert found.uncertainty_ns is not None
        assert abs(found.correction_ns - behind_ns) <= found.uncertainty_ns
        assert 2 * found.uncertainty_ns <= sum(seen for seen in least.values()) + 1
    else:
        assert found.uncertainty_ns is None


@given(st.permutations([1, 2, 3]), st.lists(st.integers(-(10**9), 10**9), min_size=3, max_size=3), TRIES)
def test_hosts_that_only_spoke_to_a_third_are_bounded_by_it(
    order: list[int], ahead: list[int], messages: list[tuple[int, bool]]
) -> None:
    """Clocks 1 and 3 exchange messages with clock 2 alone, whichever of them is the reference."""
    least: dict[tuple[int, int], int] = {}
    for number, (took_ns, forth) in enumerate([*messages, (7, True), (7, True), (9, False), (9, False)]):
        other = 1 if number % 2 else 3
        sender, receiver = (2, other) if forth else (other, 2)
        seen_ns = took_ns + ahead[receiver - 1] - ahead[sender - 1]
        least[sender, receiver] = min(seen_ns, least.get((sender, receiver), seen_ns))
    found = estimate(order, [Messages(*ends, seen, 1) for ends, seen in least.items()], {})
    for other in order[1:]:
        truth = ahead[order[0] - 1] - ahead[other - 1]
        assert abs(found[other].correction_ns - truth) <= (found[other].uncertainty_ns or 0) <= 33


def test_messages_that_contradict_each_other_are_said_so() -> None:
    found = estimate([1, 2], [Messages(1, 2, -5 * MS, 3), Messages(2, 1, 2 * MS, 3)], {})[2]
    assert (found.earliest_ns, found.latest_ns, found.contradiction_ns) == (5 * MS, 2 * MS, 3 * MS)


def test_one_direction_moves_a_clock_only_as_far_as_it_must() -> None:
    for seen_ns, expected_ns in ((4 * MS, 0), (-6 * MS, 6 * MS)):
        found = estimate([1, 2], [Messages(1, 2, seen_ns, 1)], {})[2]
        assert (found.correction_ns, found.uncertainty_ns, found.method) == (expected_ns, None, "one_direction")


class Host:
    """Hand-made recordings whose processes say they are of a host."""

    def __init__(self, run: Path, host: str = "alpha") -> None:
        self.run, self.host = run, host
        run.mkdir(exist_ok=True)
        (run / layout.MANIFEST).write_text(json.dumps({"format_version": 1, "command": [run.name], "started_ns": 10}))

    def process(self, pid: int, ppid: int, *roles: str, **engine: Any) -> Recorder:
        recorder = Recorder(self.run)
        for role in roles:
            recorder.note("role", opens=True, role=role)
        if "engine" in roles:
            recorder.note("engine", **{"model": "m", "block_size_tokens": 16, "blocks": 10, **engine})
        self._say(recorder, pid, ppid)
        return recorder

    def _say(self, recorder: Recorder, pid: int, ppid: int) -> None:
        assert recorder.directory is not None
        journal = recorder.directory / layout.JOURNAL
        first, *rest = journal.read_text().splitlines(keepends=True)
        facts = json.loads(first) | {"pid": pid, "ppid": ppid, "host": self.host, "boot_id": self.host}
        journal.write_text(json.dumps(facts) + "\n" + "".join(rest))


def serve(recorder: Recorder, request_id: str, at_ms: int, max_tokens: int, outside: int = 0) -> None:
    """A request that is queued, admitted and answered, two milliseconds each, in an engine that is its own frontend."""
    number, external = recorder.intern(request_id), recorder.intern(request_id.partition("-")[0])
    recorder.stream(REQUEST_ARRIVAL)(at_ms * MS, number, external)
    recorder.stream(REQUEST_QUEUED)(at_ms * MS, number, 0, 64, max_tokens, 0, 0, -1, 0)
    event = recorder.stream(REQUEST_EVENT)
    event((at_ms + 2) * MS, 1, number, RequestOp.schedule, 0, 0, 0, 0, outside, 4)
    event((at_ms + 4) * MS, 1, number, RequestOp.first_token, 0, 64, 1, -1, -1, 4)
    event((at_ms + 4) * MS, 1, number, RequestOp.finish, FinishReason.length, 64, max_tokens, -1, -1, 4)


Opened = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def merged(tmp_path: Path) -> Iterator[Callable[..., tuple[Summary, Opened]]]:
    """Ingests recordings together; the summary, and what asks the trace."""
    connections = []

    def merge(*runs: Path, **options: Any) -> tuple[Summary, Opened]:
        summary = ingest(runs, tmp_path / "trace.duckdb", **options)
        connections.append(duckdb.connect(str(summary.target), read_only=True))
        return summary, lambda sql: connections[-1].execute(sql).fetchall()

    yield merge
    for connection in connections:
        connection.close()


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A prefill engine, a decode engine and a client of one host: each took three requests, 10 ms apart."""
    runs = [tmp_path / name for name in ("prefill", "decode")]
    for run, max_tokens, later_ms, outside in zip(runs, (1, 8), (0, 5), (0, 48), strict=True):
        recorder = Host(run).process(100, 1, "frontend", "engine", "worker", connector="ExampleConnector")
        for request in range(3):
            serve(recorder, f"r{request}-{max_tokens}", 1000 + 10 * request + later_ms, max_tokens, outside)
    client = Host(tmp_path / "client").run
    (client / layout.PROCESSES).mkdir()
    [process] = open_recording(runs[0]).processes
    [offset_ns] = clock.offsets([process]).values()
    lines = [
        {"request_id": f"r{n}", "send_ns": offset_ns + at, "first_token_ns": offset_ns + at + 10 * MS, "last_token_ns":
         offset_ns + at + 11 * MS} for n in range(3) for at in [(999 + 10 * n) * MS]]  # fmt: skip
    (client / layout.CLIENT).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return (*runs, client)


def test_recordings_of_one_boot_share_their_clock_exactly(merged: Any, pair: tuple[Path, Path, Path]) -> None:
    summary, rows = merged(*pair[:2])
    assert rows("SELECT host, correction_ns, uncertainty_ns, method FROM host_clock") == [("alpha", 0, 0, "reference")]
    assert rows("SELECT process_id, recording, host_clock FROM process ORDER BY 1") == [(1, 1, 1), (2, 2, 1)]
    assert rows("SELECT recording, name FROM recording ORDER BY 1") == [(1, "prefill"), (2, "decode")]
    [*starts] = rows("SELECT (decode_arrival_ns - prefill_end_ns) / 1e6, uncertainty_ns FROM handover")
    assert starts == [(1.0, 0)] * 3
    assert summary.warnings == []


@pytest.mark.parametrize("ahead_ns", [-3_600_000 * MS, 123_456_789])
def test_a_shifted_clock_is_recovered_within_its_uncertainty(
    merged: Any, pair: tuple[Path, Path, Path], tmp_path: Path, ahead_ns: int
) -> None:
    """Prefill ends 1 ms before decode begins; the client asks 1 ms before, and hears of the answer 2 ms after it."""
    prefill, decode, client = pair
    other = on_another_host(decode, tmp_path / "elsewhere", "beta", ahead_ns)
    _, rows = merged(prefill, other, client)
    [(correction, uncertainty, earliest, latest, messages)] = rows(
        "SELECT correction_ns, uncertainty_ns, earliest_ns, latest_ns, messages FROM host_clock WHERE host = 'beta'"
    )
    assert abs(correction + ahead_ns) <= uncertainty <= 3 * MS
    assert earliest <= -ahead_ns <= latest
    assert messages == 3 + 3 * 2  # hand-overs; the client's questions and answers
    [(took, stated)] = rows("SELECT DISTINCT decode_arrival_ns - prefill_end_ns, uncertainty_ns FROM handover")
    assert abs(took - MS) <= uncertainty == stated


def test_a_given_offset_is_taken_as_it_is(merged: Any, pair: tuple[Path, Path, Path], tmp_path: Path) -> None:
    other = on_another_host(pair[1], tmp_path / "elsewhere", "beta", 77 * MS)
    _, rows = merged(pair[0], other, clock_offsets={"elsewhere": -77 * MS})
    assert rows("SELECT correction_ns, uncertainty_ns, method FROM host_clock WHERE host_clock = 2") == [
        (-77 * MS, 0, "given")
    ]
    [(took_ns,)] = rows("SELECT max(decode_arrival_ns - prefill_end_ns) FROM handover")
    assert abs(took_ns - MS) < READING_NS
    for name, text in (("prefill", "first recording's host"), ("nothing", "expected one of the recordings")):
        with pytest.raises(KvtraceError, match=text):
            ingest([pair[0], other], tmp_path / "t.duckdb", clock_offsets={name: 1})


def test_without_a_way_back_the_bound_is_said_to_be_missing(
    merged: Any, pair: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    other = on_another_host(pair[1], tmp_path / "elsewhere", "beta", -50 * MS)
    summary, rows = merged(pair[0], other)
    [(correction_ns, *rest)] = rows("SELECT correction_ns, uncertainty_ns, method FROM host_clock WHERE host_clock = 2")
    assert abs(correction_ns - 49 * MS) < READING_NS
    assert rest == [None, "one_direction"]
    assert any("could not be compared" in warning for warning in summary.warnings)


def test_an_internal_id_in_two_engines_is_two_requests(merged: Any, tmp_path: Path) -> None:
    """As with VLLM_DISABLE_REQUEST_ID_RANDOMIZATION: each engine's frontend, worker and events keep to their own."""
    host = Host(tmp_path / "run")
    for base in (100, 200):
        frontend = host.process(base, 1, "frontend")
        engine = host.process(base + 1, base, "engine", dp_rank=base // 100 - 1)
        worker = host.process(base + 2, base + 1, "worker")
        number, external = frontend.intern("same"), frontend.intern(f"asked-{base}")
        frontend.stream(REQUEST_ARRIVAL)(base * MS, number, external)
        serve_one = engine.intern("same")
        engine.stream(REQUEST_QUEUED)(base * MS + 1, serve_one, 0, base, 5, 0, 0, -1, 0)
        worker.stream(FORWARD)(base * MS + 5, base * MS + 6, base + 1, 1, 7, 1, 1)
    summary, rows = merged(host.run)
    wanted = "external_id, prompt_tokens, e.pid, dp_rank"
    assert rows(f"SELECT {wanted} FROM request JOIN process e ON process_id = engine_id ORDER BY 1") == [
        ("asked-100", 100, 101, 0),
        ("asked-200", 200, 201, 1),
    ]
    assert rows("SELECT w.pid, e.pid FROM forward f JOIN process w USING (process_id) "
                "JOIN process e ON e.process_id = f.engine_id ORDER BY 1") == [(102, 101), (202, 201)]  # fmt: skip
    assert summary.warnings == []


def test_an_id_that_may_be_either_engines_is_nobodys(merged: Any, tmp_path: Path) -> None:
    """One frontend of two engines, as at DP=2: which of them got the request is not known."""
    host = Host(tmp_path / "run")
    frontend = host.process(100, 1, "frontend")
    frontend.stream(REQUEST_ARRIVAL)(MS, frontend.intern("same"), frontend.intern("asked"))
    for pid in (101, 102):
        engine = host.process(pid, 100, "engine")
        engine.stream(REQUEST_QUEUED)(2 * MS, engine.intern("same"), 0, pid, 5, 0, 0, -1, 0)
    summary, rows = merged(host.run)
    assert rows("SELECT external_id, prompt_tokens FROM request ORDER BY ALL") == [
        ("asked", None), (None, 101), (None, 102)]  # fmt: skip
    assert any("ids are those of several engines" in warning for warning in summary.warnings)


def test_an_id_that_an_engine_used_twice_is_counted(merged: Any, tmp_path: Path) -> None:
    engine = Host(tmp_path / "run").process(100, 1, "engine")
    for moment in (1, 2):
        engine.stream(REQUEST_QUEUED)(moment * MS, engine.intern("same"), 0, 9, 5, 0, 0, -1, 0)
    summary, rows = merged(engine.run_dir)
    assert rows("SELECT count(*) FROM request") == [(1,)]
    assert any("1 requests came under an internal id" in warning for warning in summary.warnings)


def test_a_worker_on_another_host_finds_its_engine(merged: Any, tmp_path: Path) -> None:
    """Pipeline ranks on two hosts, recorded apart: the engine's pid is one of the first host."""
    first, second = Host(tmp_path / "a", "alpha"), Host(tmp_path / "b", "beta")
    first.process(500, 1, "engine", pp_size=2)
    worker = second.process(501, 1, "worker")
    worker.stream(FORWARD)(MS, 2 * MS, 500, 1, 7, 1, 1)
    _, rows = merged(first.run, second.run)
    assert rows("SELECT engine_id, process_id FROM forward") == [(1, 2)]


def test_recordings_given_twice_or_without_a_place_are_refused(pair: tuple[Path, Path, Path], tmp_path: Path) -> None:
    with pytest.raises(KvtraceError, match="given twice"):
        ingest([pair[0], Path(os.path.relpath(pair[0]))], tmp_path / "t.duckdb")
    with pytest.raises(KvtraceError, match="name it with -o"):
        ingest(pair[:2])
    with pytest.raises(KvtraceError, match="no recorded process"):
        ingest([pair[2]], tmp_path / "t.duckdb")


def test_two_engines_in_one_process_are_said_so(merged: Any, tmp_path: Path) -> None:
    recorder = Host(tmp_path / "run").process(100, 1, "engine")
    recorder.note("engine", model="another")
    summary, rows = merged(recorder.run_dir)
    assert rows("SELECT model FROM engine") == [("another",)]
    assert any("its process made 2 engines" in warning for warning in summary.warnings)
