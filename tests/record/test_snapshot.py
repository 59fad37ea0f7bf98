"""`kvtrace record --keep-last` end to end without vLLM, and frozen copies of it while it goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.errors import KvtraceError
from kvtrace.events import REQUEST_QUEUED, STEP_UPDATE
from kvtrace.format import layout
from kvtrace.format.reader import open_recording
from kvtrace.retention.snapshot import snapshot
from tests.record.processes import Engine, Output, Run, Start

STEADY = """
    import time
    from kvtrace.capture.limits import from_environment

    steady = Recorder(Path(os.environ["KVTRACE_RUN_DIR"]), from_environment(os.environ))
    steady.note("role", role="engine", opens=True)
    emit = steady.stream(EVENTS["step_update"])
    number = 0
    def until(done):
        global number
        while not done():
            number += 1
            emit(time.monotonic_ns(), time.monotonic_ns(), number, 1, 0)
            time.sleep(0.001)
"""


def test_old_segments_go_and_the_summary_says_so(record: Run, engine: Engine, tmp_path: Path) -> None:
    # GIVEN an engine that records until its first segments are gone
    source = (
        STEADY
        + """
    gone = lambda: any(Path(os.environ["KVTRACE_RUN_DIR"]).glob("processes/*/kept.json"))
    until(gone)
    """
    )
    done = record(
        "-o", "run", "--no-preflight", "--keep-last", "1s", "--segment-minutes", "0.01", "--", *engine(source)
    )

    # THEN what is there is the tail, the summary counts the rest, and the manifest tells of the limits
    processes = [process for process in open_recording(tmp_path / "run").processes if process.discards.streams]
    gone = processes[0].discarded("step_update")
    assert done.returncode == 0
    assert gone.records > 0
    assert f"discarded: {gone.records:,} records in {gone.files} files".encode() in done.stderr
    limits = json.loads((tmp_path / "run" / layout.MANIFEST).read_text())["limits"]
    assert limits == {"segment_ns": 600_000_000, "keeps": True, "keep_ns": 1_000_000_000}


def test_of_a_process_that_has_ended_everything_may_go(record: Run, engine: Engine, tmp_path: Path) -> None:
    # GIVEN a process that ended soon, beside one that goes on until nothing of it is left
    source = (
        STEADY
        + """
    child = os.fork()
    if not child:
        step(5)
        os._exit(0)
    os.waitpid(child, 0)
    (directory,) = Path(os.environ["KVTRACE_RUN_DIR"]).glob(f"processes/*-{child}-*")
    until(lambda: not list(directory.glob("*.seg")))
    print(directory.name)
    """
    )
    done = record("-o", "run", "--no-preflight", "--keep-last", "1s", "--", *engine(source))

    # THEN its records are counted as gone
    (gone,) = (
        p for p in open_recording(tmp_path / "run").processes if p.directory.name == done.stdout.decode().strip()
    )
    assert gone.discarded("step_schedule").records == 5
    assert gone.segments() == {}
    assert gone.missing_segments() == []


def test_a_signal_freezes_what_is_there_while_recording_goes_on(start: Start, engine: Engine, tmp_path: Path) -> None:
    # GIVEN a flight recorder, whose command would die of the signal
    source = (
        STEADY
        + """
    for _ in range(20):
        until(iter([False, True]).__next__)
    print("ready", flush=True)
    until(lambda: any(Path().glob("run-*")))
    """
    )
    process = start("-o", "run", "--no-preflight", "--keep-last", "1h", "--", *engine(source))
    assert process.stdout is not None
    assert process.stderr is not None
    Output(process.stdout.fileno()).read_until(b"ready")

    # WHEN it is signalled
    os.kill(process.pid, signal.SIGUSR2)

    # THEN it says where the copy is, the copy can be read, and the command ends by itself
    Output(process.stderr.fileno()).read_until(rb"snapshot: \S+/run-[\d-]+\n")
    assert process.wait(30) == 0
    (copy,) = tmp_path.glob("run-*")
    frozen = open_recording(copy)
    assert "frozen_ns" in frozen.manifest
    (steps,) = (p.segments()["step_update"][0].count()[0] for p in frozen.processes if "step_update" in p.segments())
    assert steps >= 20


def test_a_frozen_copy_does_not_change_and_shares_what_is_finished(tmp_path: Path) -> None:
    # GIVEN a recording with a finished segment and one that is written to
    run = tmp_path / "run"
    run.mkdir()
    recorder = Recorder(run)
    emit = recorder.stream(STEP_UPDATE)
    emit(1, 2, 1, 0, 0)
    recorder.rotate()
    emit(1, 2, 2, 0, 0)
    recorder.stream(REQUEST_QUEUED)(1, recorder.intern("a"), 1, 1, 1, 0, 0, -1, 0)

    # WHEN it is frozen and goes on
    copy = snapshot(run, tmp_path / "copy")
    emit(1, 2, 3, 0, 0)
    recorder.intern("b")

    # THEN the copy has what was there
    (process,) = open_recording(copy).processes
    first, second = process.segments()["step_update"]
    assert (first.count(), second.count()) == ((1, 0), (1, 0))
    assert process.strings() == {1: "a"}
    assert first.path.stat().st_nlink == 2
    assert second.path.stat().st_nlink == 1
    assert open_recording(run).processes[0].segments()["step_update"][1].count() == (2, 0)


def test_what_cannot_be_frozen_is_named(tmp_path: Path) -> None:
    with pytest.raises(KvtraceError, match="holds no recording"):
        snapshot(tmp_path, tmp_path / "copy")
    Recorder(tmp_path).open()
    (tmp_path / "taken").mkdir()
    with pytest.raises(KvtraceError, match="taken exists"):
        snapshot(tmp_path, tmp_path / "taken")
    (tmp_path / "file").touch()
    with pytest.raises(KvtraceError, match=r"Cannot copy .* to .*/file/copy: Not a directory\. Use -o to name another"):
        snapshot(tmp_path, tmp_path / "file" / "copy")
    assert not list(tmp_path.glob(".*"))


def test_a_record_that_is_finished_during_the_copy_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a record whose front was copied before it was written, and its last byte after that
    recorder = Recorder(tmp_path / "run")
    emit = recorder.stream(STEP_UPDATE)
    emit(1, 2, 3, 4, 0)
    copy_file = shutil.copyfile
    size = STEP_UPDATE.struct.size

    def copy_front_first(path: Path, copy: Path) -> None:
        copy_file(path, copy)
        if copy.suffix == ".seg":
            with copy.open("r+b") as file:
                file.seek(layout.SEGMENT_HEADER_BYTES + 2 * size - 1)
                file.write(b"\1")

    monkeypatch.setattr(shutil, "copyfile", copy_front_first)

    # WHEN the recording is frozen
    snapshot(tmp_path / "run", tmp_path / "copy")

    # THEN it has the record that was whole, and nothing is torn
    [process] = open_recording(tmp_path / "copy").processes
    [segment] = process.segments()[STEP_UPDATE.name]
    assert segment.count() == (1, 0)
