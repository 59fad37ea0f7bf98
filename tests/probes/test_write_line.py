"""Lines that recording writes while the engine runs let no other thread go first."""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvtrace.capture._native import write_line
from kvtrace.capture.recorder import Recorder

LONGER_THAN_THE_TEST = 60.0


@pytest.fixture
def no_turns() -> Iterator[None]:
    """A thread that wants the GIL gets it only when another one gives it away."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(LONGER_THAN_THE_TEST)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("no_turns")
def test_a_request_id_is_interned_before_a_thread_that_is_ready_goes_on(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.open()
    waits, ran = threading.Lock(), threading.Event()

    def go_on() -> None:
        with waits:
            ran.set()

    waits.acquire()
    thread = threading.Thread(target=go_on)
    thread.start()
    waits.release()
    numbers = [recorder.intern(f"request {number}") for number in range(200)]
    went_on = ran.is_set()
    thread.join()
    assert not went_on
    assert len(set(numbers)) == 200
    (strings,) = tmp_path.glob("processes/*/strings*")
    assert strings.read_text().count("request ") == 200


def test_bytes_are_appended_and_errors_are_raised(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    assert write_line(descriptor, b"a\0b\n") == 4
    assert write_line(descriptor, b"") == 0
    assert path.read_bytes() == b"a\0b\n"
    with pytest.raises(TypeError):
        write_line(descriptor, "text")  # type: ignore[arg-type]
    os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        write_line(descriptor, b"c")


def test_a_file_that_may_not_grow_ends_the_recording(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Python ignores SIGXFSZ."""
    recorder = Recorder(tmp_path)
    recorder.open()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        numbers = [recorder.intern(f"request {number:0100}") for number in range(100)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert numbers[-1] == 0
    assert recorder.stopped is not None
    assert recorder.stopped.startswith("cannot write the journal: ")
    assert "recording stopped" in capfd.readouterr().err
