from __future__ import annotations

from pathlib import Path

import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.events import EVENTS
from kvtrace.format.discarded import Discarded, Discards
from kvtrace.launch.meter import Meter, Reading
from kvtrace.launch.status import size, status_text

SECOND = 1_000_000_000
STEP = EVENTS["step_schedule"]


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    """In this process, with segments so small that several are filled."""
    return Recorder(tmp_path, largest_segment_bytes=16384)


def steps(recorder: Recorder, count: int) -> None:
    for _ in range(count):
        recorder.stream(STEP)(*[1] * len(STEP.fields))


def test_nothing_is_counted_before_anything_recorded(tmp_path: Path) -> None:
    assert Meter(tmp_path).read(SECOND) == Reading()


def test_records_are_counted_exactly_while_recording_goes_on(tmp_path: Path, recorder: Recorder) -> None:
    meter, written = Meter(tmp_path), 0
    for more in (1, 10, 1000, 7):
        steps(recorder, more)
        written += more
        reading = meter.read(SECOND)
        assert reading.records == written
        assert reading.bytes == written * STEP.struct.size
    assert len(list(tmp_path.glob("processes/*/*.seg"))) > 3


def test_processes_that_come_later_are_found(tmp_path: Path, recorder: Recorder) -> None:
    meter = Meter(tmp_path)
    meter.read(0)
    steps(recorder, 1)
    assert meter.read(SECOND).processes == 1
    steps(Recorder(tmp_path), 1)
    assert meter.read(2 * SECOND).processes == 2


def test_the_rate_is_that_of_the_last_seconds(tmp_path: Path, recorder: Recorder) -> None:
    meter = Meter(tmp_path)
    assert meter.read(0).steps_per_s is None
    rates = []
    for second in range(1, 20):
        steps(recorder, 100 if second < 10 else 20)
        rates.append(meter.read(second * SECOND).steps_per_s)
    assert rates[0] == pytest.approx(100)
    assert rates[8] == pytest.approx(100)
    assert rates[-1] == pytest.approx(20)


def test_what_a_flight_recorder_lets_go_is_no_longer_counted_but_still_happened(
    tmp_path: Path, recorder: Recorder
) -> None:
    # GIVEN a meter that has seen two full segments
    meter = Meter(tmp_path)
    steps(recorder, 300)
    assert meter.read(0) is not None
    (first, second) = sorted(tmp_path.glob("processes/*/*.seg"))[:2]
    gone = sum(1 for _ in range((first.stat().st_size - 4096) // STEP.struct.size))

    # WHEN the first goes
    first.unlink()
    Discards({STEP.name: Discarded(1, 1, gone, first.parent.stat().st_size, 1)}).write(second.parent)
    steps(recorder, 50)

    # THEN what is there is counted, and the rate is that of all steps
    reading = meter.read(SECOND)
    assert reading is not None
    assert reading.records == 350 - gone
    assert reading.steps_per_s == pytest.approx(50)


def test_drops_are_counted(tmp_path: Path, recorder: Recorder) -> None:
    steps(recorder, 3)
    recorder.stop("enough")
    steps(recorder, 4)
    reading = Meter(tmp_path).read(SECOND)
    assert (reading.records, reading.dropped) == (3, 4)
    assert "4 dropped" in status_text(reading, SECOND).plain


def test_a_damaged_recording_is_told_and_not_fatal(tmp_path: Path, recorder: Recorder) -> None:
    steps(recorder, 3)
    next(tmp_path.glob("processes/*/journal.jsonl")).write_bytes(b"x\ny\n")
    assert Meter(tmp_path).read(SECOND) is None
    assert "cannot be read" in status_text(None, SECOND).plain


def test_the_line_says_what_it_counts() -> None:
    text = status_text(Reading(2, 1234567, 45_600_000, 0, 12.34), 3_723 * SECOND).plain
    assert text == " kvtrace  1:02:03  2 processes  1,234,567 records  45.6 MB  12.3 steps/s  0 dropped"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_960, "1.0 MB"),
        (2_500_000_000, "2.5 GB"),
        (5_000_000_000_000, "5.0 TB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text
