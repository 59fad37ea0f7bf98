"""Tiles under the caps of a recording: whole steps stay, and the others are counted."""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.capture.limits import Limits
from kvtrace.capture.recorder import Recorder
from kvtrace.format.reader import open_recording, tile_files
from kvtrace.format.tile_file import CHUNK, FILE_HEADER_BYTES, SECTION_BYTES, TILES_MAGIC
from kvtrace.ingest.derive.tile_columns import headers
from kvtrace.retention.retention import Retention

pytest.importorskip("torch")

from tests.probes.tiles.host_drain import Drain, Ring

TILES = 1000
STEP_BYTES = CHUNK.size + TILES * SECTION_BYTES[1]
CAPPED = Limits(max_bytes=500_000, keeps=True)
FILE_BYTES = FILE_HEADER_BYTES + -(-(CAPPED.file_bytes - FILE_HEADER_BYTES) // STEP_BYTES) * STEP_BYTES
EDGES = (-1, 0, 1, FILE_HEADER_BYTES - 1, FILE_HEADER_BYTES, FILE_HEADER_BYTES + 1, FILE_HEADER_BYTES + STEP_BYTES)


def drain_of(recorder: Recorder) -> Drain:
    return Drain(recorder, Ring([16, 2 * TILES, 16]), staging_bytes=1 << 12)


def write(drain: Drain, steps: range) -> None:
    for step in steps:
        drain._ring.closes(step, (0, TILES, 0))
        drain.look()


def kept_steps(run: Path) -> list[int]:
    (process,) = open_recording(run).processes
    chunks, torn = headers(process.directory)
    assert torn == 0
    return [chunk.step for chunk in chunks]


def test_tiles_stop_at_the_allowance_after_a_whole_step(tmp_path: Path) -> None:
    drain = drain_of(Recorder(tmp_path, Limits(max_bytes=20_500)))
    write(drain, range(30))

    # 2,064 bytes a step: nine of them, and none of those is taken back when the tenth does not fit
    assert kept_steps(tmp_path) == list(range(9))
    assert drain._files.failed is not None
    assert "--max-bytes of 20,500" in drain._files.failed
    assert (drain.state.recorded, drain.state.unwritten) == (9, 21)


@settings(max_examples=30)
@given(st.integers(FILE_HEADER_BYTES, 64 * STEP_BYTES))
def test_of_any_allowance_what_is_left_holds_no_step(max_bytes: int) -> None:
    """Though more than a step is taken at a time."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Limits, "segment_bytes", 7 * STEP_BYTES // 2)
        drain = drain_of(Recorder(Path(folder), Limits(max_bytes=max_bytes)))
        write(drain, range(70))
        drain.close()
        assert kept_steps(Path(folder)) == list(range(max_bytes // STEP_BYTES))


@settings(max_examples=60)
@given(
    st.one_of(
        st.integers(0, 3 * FILE_BYTES), st.sampled_from([n * FILE_BYTES + more for n in (1, 2) for more in EDGES])
    )
)
def test_wherever_the_disk_is_full_whole_steps_stay(room_bytes: int) -> None:
    """Within a step, within a file's header, or between them."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(Path(folder), CAPPED)
        drain = drain_of(recorder)
        left, write_some = [room_bytes], os.write

        def write_into_room(descriptor: int, data: memoryview | bytes) -> int:
            if not left[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            written = write_some(descriptor, data[: left[0]])
            left[0] -= written
            return written

        def write_natively(descriptor: int, address: int, count: int) -> int:
            try:
                return write_into_room(descriptor, ctypes.string_at(address, count))
            except OSError as error:
                ctypes.set_errno(error.errno or 0)
                return -1

        recorder.open()
        patch.setattr("kvtrace.probes.device.tiles.files.os.write", write_into_room)
        drain.write_with(write_natively)
        write(drain, range(100))
        patch.undo()
        drain.close()
        steps, sizes = kept_steps(Path(folder)), [path.stat().st_size for _, path in tile_files(recorder.directory)]
        assert steps == list(range(len(steps)))
        assert sum(sizes) <= room_bytes
        assert drain._files.failed is not None
        assert drain.state.recorded == len(steps)
        assert len(steps) >= (room_bytes - 3 * FILE_HEADER_BYTES) // STEP_BYTES


def test_old_files_of_tiles_go_and_their_steps_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN files that end by size, 33 steps each
    recorder = Recorder(tmp_path, CAPPED)
    recorder.open()
    write(drain_of(recorder), range(400))
    assert len(tile_files(recorder.directory)) > 10

    # WHEN the cap is applied
    assert Retention(tmp_path, CAPPED).enforce() > 0

    # THEN the last steps are there, in files that are what they were, and the others were counted
    (process,) = open_recording(tmp_path).processes
    gone = process.discarded("tiles")
    assert kept_steps(tmp_path) == list(range(gone.records, 400))
    assert gone.records > 100
    assert gone.begins_ns <= time.monotonic_ns()
    assert tile_files(process.directory)[0][1].read_bytes()[: len(TILES_MAGIC)] == TILES_MAGIC


def test_files_of_tiles_end_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(tmp_path)
    recorder.open()
    recorder.limits = Limits(segment_ns=1_000)
    drain = drain_of(recorder)
    now = [10**9]
    monkeypatch.setattr("kvtrace.probes.device.tiles.files.time.monotonic_ns", lambda: now[0])
    for step in range(6):
        write(drain, range(step, step + 1))
        now[0] += 600
    assert len(tile_files(recorder.directory)) == 3
    assert kept_steps(tmp_path) == list(range(6))
