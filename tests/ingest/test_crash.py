"""Processes that fork, use threads, die or run out of disk."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.events import BLOCK_EVENT, STEP_UPDATE
from kvtrace.format.reader import open_recording
from kvtrace.ingest.run import ingest


def start(code: str, run_dir: Path) -> subprocess.Popen[str]:
    """Run Python code in a process of its own; `run_dir` is its argument."""
    command = [sys.executable, "-c", textwrap.dedent(code), str(run_dir)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


ENDLESS = """
    import sys
    from pathlib import Path
    from kvtrace.capture.recorder import Recorder
    from kvtrace.events import BLOCK_EVENT, STEP_UPDATE

    recorder = Recorder(Path(sys.argv[1]), count_writes=True)
    block, step = recorder.stream(BLOCK_EVENT), recorder.stream(STEP_UPDATE)
    i = 0
    while True:
        block(i + 1, i, i, 1, 1, recorder.intern(f"request {i // 100}"), 0, 0, 0)
        if i % 10 == 0:
            step(i + 1, i + 2, i, 0, 0)
        if i == 0:
            print("writing", flush=True)
        i += 1
"""


@pytest.mark.parametrize("seed", range(3))
def test_nothing_written_before_kill_9_is_lost(run_dir: Path, query: Callable, seed: int) -> None:
    # GIVEN a process that counts its writes beside them
    process = start(ENDLESS, run_dir)
    assert process.stdout is not None
    process.stdout.readline()
    # WHEN it is killed at a random moment
    enough = random.Random(seed).randint(1, 30_000)
    (recording,) = open_recording(run_dir).processes
    while recording.written()["block_event"] < enough:
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    # THEN everything counted is in the trace, in order, and at most the one record in flight besides
    counted = recording.written()
    summary = ingest(run_dir)
    for stream in summary.streams:
        assert counted[stream.event] <= stream.records <= counted[stream.event] + 1
        assert stream.torn <= 1
    in_order = "SELECT block_id, internal_id FROM block_event e JOIN request USING (request) ORDER BY e.rowid"
    rows = query(summary.target)(in_order)
    assert rows == [(i, f"request {i // 100}") for i in range(len(rows))]
    assert len(rows) >= counted["block_event"]


def test_a_forked_child_records_on_its_own(run_dir: Path, query: Callable, blocks: Callable) -> None:
    recorder = Recorder(run_dir)
    blocks(recorder, 10, "parent")
    child = os.fork()
    if child == 0:
        blocks(recorder, 20, "child")
        os._exit(0)
    os.waitpid(child, 0)
    blocks(recorder, 5, "parent")

    summary = ingest(run_dir)

    rows = query(summary.target)(
        "SELECT pid, internal_id, count(*) FROM block_event JOIN request USING (request) "
        "JOIN process ON process_id = block_event.engine_id GROUP BY ALL ORDER BY internal_id"
    )
    assert rows == [(child, "child", 20), (os.getpid(), "parent", 15)]


def test_records_of_many_threads_are_all_there(run_dir: Path, query: Callable) -> None:
    recorder = Recorder(run_dir, largest_segment_bytes=1 << 18)
    emit = recorder.stream(BLOCK_EVENT)

    def work(thread: int) -> None:
        for i in range(4000):
            emit(i + 1, i, thread, 1, 1, 0, 0, 0, 0)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    summary = ingest(run_dir)

    (stream,) = summary.streams
    assert (stream.records, stream.torn, stream.dropped) == (24_000, 0, 0)
    assert stream.segments > 1
    disorder = "SELECT step < lag(step) OVER (PARTITION BY block_id ORDER BY rowid) AS bad FROM block_event"
    assert query(summary.target)(f"SELECT count(*) FROM ({disorder}) WHERE bad") == [(0,)]


def test_a_full_disk_stops_the_recording_and_is_counted(run_dir: Path, query: Callable) -> None:
    # GIVEN a process that may not write files beyond the first segment's size
    process = start(
        """
        import resource, sys
        from pathlib import Path
        from kvtrace.capture.recorder import Recorder
        from kvtrace.events import BLOCK_EVENT, STEP_UPDATE

        recorder = Recorder(Path(sys.argv[1]))
        recorder.stream(STEP_UPDATE)(1, 2, 3, 4, 5)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        for i in range(20_000):
            recorder.stream(BLOCK_EVENT)(i + 1, i, i, 1, 1, 0, 0, 0, 0)
        """,
        run_dir,
    )
    # WHEN it goes on after that
    process.communicate()
    assert process.returncode == 0
    # THEN what it could not write is counted, and said
    summary = ingest(run_dir)
    (stream,) = (stream for stream in summary.streams if stream.event == BLOCK_EVENT.name)
    assert stream.records > 0
    assert stream.dropped > 0
    assert stream.records + stream.dropped == 20_000
    assert query(summary.target)("SELECT stopped FROM process")[0][0].startswith("no new segment for block_event")
    assert any("stopped early" in warning and str(stream.dropped) in warning for warning in summary.warnings)
    assert STEP_UPDATE.name in {stream.event for stream in summary.streams}


def test_a_recording_can_be_read_while_it_goes_on(run_dir: Path, blocks: Callable) -> None:
    recorder = Recorder(run_dir)
    blocks(recorder, 10_000)
    (process,) = open_recording(run_dir).processes
    for count in (10_000, 20_000):
        segments = process.segments()["block_event"]
        assert sum(segment.committed_estimate() for segment in segments) == count
        assert [sum(column) for column in zip(*(segment.count() for segment in segments), strict=True)] == [count, 0]
        blocks(recorder, 10_000)
    assert ingest(run_dir).records == 30_000
