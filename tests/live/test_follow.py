"""Following recordings: those that start later, rotate, discard, end, are replaced or were killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvtrace.capture.limits import Limits
from kvtrace.capture.recorder import Recorder
from kvtrace.events import EVENTS, REQUEST_QUEUED, FinishReason
from kvtrace.format.layout import SEGMENT_HEADER_BYTES
from kvtrace.live.engine import EngineState
from kvtrace.live.follow import Follower
from kvtrace.live.tail import Tail
from kvtrace.retention.retention import Retention
from tests.live.pretend import PretendEngine, begin, end, work


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    begin(path)
    return path


def only(follower: Follower) -> EngineState:
    assert follower.problem is None
    (engine,) = follower.engines
    return engine.state


def check(state: EngineState, engine: PretendEngine) -> None:
    """The state has every record once."""
    expected, totals = engine.expected, state.totals
    assert totals["steps"] == expected.steps > 0
    assert (totals["queried_tokens"], totals["hit_tokens"]) == (expected.queried, expected.hits)
    assert (totals["prompt_tokens"], totals["output_tokens"]) == (expected.prompt, expected.output)
    assert (totals["preemptions"], totals["evicted_blocks"]) == (expected.preempted, expected.evicted)
    assert state.finished[FinishReason.length] == expected.finished


def test_a_recording_that_starts_later_is_followed_from_its_first_record(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "run")
    follower.poll()
    assert follower.waiting_for == "a recording to start"
    begin(tmp_path / "run")
    follower.poll()
    assert follower.waiting_for == "an engine to start"

    engine = PretendEngine(tmp_path / "run")
    work(engine, 3)
    follower.poll()
    check(only(follower), engine)
    work(engine, 4, first=3)
    follower.poll()
    check(only(follower), engine)


def test_a_process_that_becomes_an_engine_after_others_wrote_their_journals(run: Path) -> None:
    worker = Recorder(run)
    worker.note("role", role="worker")
    worker.open()
    follower = Follower(run)
    for _ in range(2):
        worker.note("gpu_clock", gpu_ns=1)
        follower.poll()
        assert follower.waiting_for == "an engine to start"
    engine = PretendEngine(run)
    work(engine, 2)
    follower.poll()
    check(only(follower), engine)


def test_a_record_that_was_finished_while_it_was_copied_is_read_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(run)
    recorder.stream(REQUEST_QUEUED)(*range(1, len(REQUEST_QUEUED.fields) + 1))
    [directory] = (run / "processes").iterdir()
    copy, copies = os.pread, []

    def front_before_end(descriptor: int, length: int, offset: int) -> bytes:
        copies.append(copy(descriptor, length, offset))
        return copies[-1] if len(copies) > 1 else bytes(8) + copies[0][8:]

    monkeypatch.setattr(os, "pread", front_before_end)
    rows = Tail(directory, REQUEST_QUEUED.name).read([0], 10)
    assert rows is not None
    assert rows[REQUEST_QUEUED.fields[0].name].tolist() == [1]


def test_every_record_counts_once_however_segments_end(run: Path) -> None:
    engine = PretendEngine(run, segment_bytes=SEGMENT_HEADER_BYTES + 1000)
    follower = Follower(run, patience_s=0)
    for first in range(0, 60, 3):
        work(engine, 3, first)
        if first % 2:
            engine.recorder.rotate()
        follower.poll()
        check(only(follower), engine)
    assert len(list(run.glob("processes/*/step_request.*.seg"))) > 10


def test_a_recording_larger_than_one_reading_is_taken_up_in_order(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = PretendEngine(run)
    work(engine, 200)
    monkeypatch.setattr("kvtrace.live.follow._MOST_RECORDS", 64)
    follower = Follower(run)
    follower.poll()
    check(only(follower), engine)
    at_once = Follower(run)
    monkeypatch.undo()
    at_once.poll()
    assert only(follower).misses.tolist() == only(at_once).misses.tolist()
    assert only(follower).inter_token.sum_ns == only(at_once).inter_token.sum_ns > 0


def test_a_step_under_way_waits_until_it_is_whole(run: Path) -> None:
    engine = PretendEngine(run)
    work(engine, 1)
    follower = Follower(run)
    engine.emit("prefix_lookup", step=engine.step + 1, admitted=True, enabled=True, queried_tokens=5, resumed=False)
    follower.poll()
    check(only(follower), engine)


def test_a_record_never_finished_holds_up_the_ones_behind_it_only_for_a_moment(run: Path) -> None:
    engine = PretendEngine(run)
    work(engine, 2)
    (path,) = run.glob("processes/*/step_update.00000.seg")
    with path.open("r+b") as file:  # the first record's last byte
        file.seek(SEGMENT_HEADER_BYTES + EVENTS["step_update"].struct.size - 1)
        file.write(b"\0")
    patient, impatient = Follower(run, patience_s=60), Follower(run, patience_s=0)
    patient.poll()
    impatient.poll()
    assert only(patient).totals["output_tokens"] == 0
    assert only(impatient).totals["output_tokens"] == engine.expected.output - 1
    assert impatient.engines[0].unread() == (1, 0)


def test_a_flight_recorder_is_followed_while_it_discards(run: Path) -> None:
    limits = Limits(keeps=True, keep_ns=10_000_000)
    engine = PretendEngine(run, limits=limits, segment_bytes=SEGMENT_HEADER_BYTES + 1000)
    retention, follower = Retention(run, limits, lambda: engine.now), Follower(run)
    for first in range(0, 40, 4):
        work(engine, 4, first)
        follower.poll()
        retention.enforce()
    check(only(follower), engine)
    assert follower.engines[0].unread() == (0, 0)
    assert not list(run.glob("processes/*/step_update.00000.seg")), "it was meant to discard"

    late = Follower(run)
    late.poll()
    assert 0 < only(late).totals["steps"] < engine.expected.steps


def test_engines_are_counted_apart(run: Path) -> None:
    first, second = PretendEngine(run), PretendEngine(run, model="other")
    work(first, 2)
    work(second, 5)
    follower = Follower(run)
    follower.poll()
    for engine, followed in zip((first, second), follower.engines, strict=True):
        check(followed.state, engine)


def test_another_recording_in_the_same_directory_begins_anew(run: Path) -> None:
    engine = PretendEngine(run)
    work(engine, 2)
    follower = Follower(run)
    follower.poll()
    check(only(follower), engine)

    shutil.rmtree(run)
    follower.poll()
    assert follower.waiting_for == "a recording to start"
    begin(run, started_ns=2)
    again = PretendEngine(run)
    work(again, 3)
    follower.poll()
    check(only(follower), again)


def test_an_ended_recording_shows_its_last_minute(run: Path) -> None:
    engine = PretendEngine(run)
    work(engine, 3)
    end(run, exit_code=3)
    follower = Follower(run)
    follower.poll()
    assert (follower.ended, follower.exit_code) == (True, 3)
    check(only(follower), engine)


def test_what_a_killed_engine_wrote_counts_and_it_is_seen_to_be_gone(run: Path) -> None:
    source = """
        import sys
        from pathlib import Path
        from tests.live.pretend import PretendEngine, work
        engine = PretendEngine(Path(sys.argv[1]))
        work(engine, 4)
        print(engine.expected.output, flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", "\n".join(line.strip() for line in source.splitlines()), str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ}) as process:
        assert process.stdout is not None
        output = int(process.stdout.readline())
        follower = Follower(run)
        follower.poll()
        assert follower.engines[0].alive
        process.send_signal(signal.SIGKILL)
        process.wait()
    follower.poll()
    assert not follower.engines[0].alive
    assert only(follower).totals["output_tokens"] == output


@pytest.mark.parametrize("damage", [b"not a segment", b""])
def test_damage_is_named_and_ends_nothing(run: Path, damage: bytes) -> None:
    engine = PretendEngine(run)
    work(engine, 1)
    (path,) = run.glob("processes/*/step_update.00000.seg")
    path.write_bytes(damage)
    follower = Follower(run)
    follower.poll()
    assert (follower.problem is None) == (not damage)
    if damage:
        assert "damaged" in str(follower.problem)


@pytest.mark.parametrize(
    ("place", "damage"),
    [
        ("manifest.json", b"[1]"),
        ("processes/*/strings.jsonl", b"[1, \n{{\n"),
        ("processes/*/step_schedule.00000.seg", b"\xff" * 2000),
    ],
)
def test_facts_and_records_that_cannot_be_right_are_damage(run: Path, place: str, damage: bytes) -> None:
    engine = PretendEngine(run)
    work(engine, 3)
    (path,) = run.glob(place)
    if path.suffix == ".seg":  # all but the bytes that say that a record is whole
        size = EVENTS[path.name.split(".")[0]].struct.size
        data = bytearray(path.read_bytes())
        for begin in range(SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + 3 * size, size):
            data[begin : begin + size - 1] = damage[: size - 1]
        path.write_bytes(data)
    else:
        path.write_bytes(damage)
    follower = Follower(run, with_names=True, patience_s=0)
    follower.poll()
    assert "damaged" in str(follower.problem)


def test_the_state_does_not_grow_with_the_recording(run: Path) -> None:
    """Bytes held by Python and numpy after many requests are those after few."""
    import tracemalloc

    engine = PretendEngine(run, segment_bytes=1 << 16)
    follower = Follower(run, with_names=True)
    sizes = []
    tracemalloc.start()
    for first in range(0, 1500, 300):
        work(engine, 300, first)
        follower.poll()
        if first >= 600:
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    check(only(follower), engine)
    assert max(sizes) - min(sizes) < 300_000
