"""`kvtrace top`: its frame, and its keys in a pseudo-terminal of 80 columns."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len

from kvtrace.live.follow import Follower
from kvtrace.live.screen import duration, frame, help_frame
from kvtrace.live.view import Sort, Table, View, rows
from tests.live.pretend import PretendEngine, begin, end, work
from tests.record.processes import KVTRACE, Output

ROWS, COLUMNS = 24, 80


@pytest.fixture
def engine(tmp_path: Path) -> PretendEngine:
    """Ten requests have ended; of three others two run, with 12 and 3 blocks, and one waits."""
    begin(tmp_path / "run")
    engine = PretendEngine(tmp_path / "run", model="models/tiny")
    work(engine, 10)
    engine.queue("small-request", 40, [1, 2], session="chat-1")
    engine.queue("large-request-of-a-client-with-very-long-names-0123456789abcdef", 180, [3], session="chat-2")
    engine.queue("waiting-request", 50, [4], session="chat-2")
    engine.run_step(admit=2)
    return engine


def followed(engine: PretendEngine) -> Follower:
    follower = Follower(engine.run, with_names=True)
    follower.poll()
    return follower


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 40), (200, 12)])
@pytest.mark.parametrize("table", list(Table))
def test_a_frame_fills_the_terminal_and_no_more(engine: PretendEngine, table: Table, width: int, height: int) -> None:
    lines = frame(followed(engine), View(table), width, height)
    assert len(lines) == height
    assert max(cell_len(line.plain) for line in lines) <= width


def test_80_columns_show_every_figure_whole(engine: PretendEngine) -> None:
    shown = "\n".join(line.plain for line in frame(followed(engine), View(), COLUMNS, ROWS)[:-1])
    assert "\u2026" not in shown
    expected = engine.expected
    assert f"{expected.hits / expected.queried:.1%} of prompt tokens from the cache" in shown
    assert "2 running  1 waiting" in shown
    assert f"{expected.preempted} requests preempted" in shown
    assert "kv_insufficient" in shown


def test_help_fits(engine: PretendEngine) -> None:
    lines = help_frame(COLUMNS, ROWS)
    assert len(lines) <= ROWS
    assert max(cell_len(line.plain) for line in lines) <= COLUMNS


def test_who_holds_most_comes_first_and_filters_and_sessions_apply(engine: PretendEngine) -> None:
    follower = followed(engine)
    names = [row.name.split("-")[0] for row in rows(follower, View(), 10)]
    assert names == ["large", "small", "waiting"]
    assert [row.name for row in rows(follower, View(filter="chat-1"), 10)] == ["small-request"]
    sessions = rows(follower, View(Table.sessions), 10)
    assert [(row.name, row.requests, row.blocks) for row in sessions] == [("chat-2", 2, 12), ("chat-1", 1, 3)]
    assert len(rows(follower, View(Table.finished, Sort.age), 100)) == 10


def test_a_long_id_leaves_room_for_its_session(engine: PretendEngine) -> None:
    engine.queue("cmpl-0123456789abcdef-0-b5e7866c", 16, [9], session="agent-5")
    engine.run_step(admit=1)
    (line,) = [
        line.plain
        for line in frame(followed(engine), View(filter="agent-5"), COLUMNS, ROWS)
        if "b5e7866c" in line.plain
    ]
    assert line.startswith("agent-5 ~")
    assert line.split()[1].endswith("-b5e7866c")
    assert cell_len(line) <= COLUMNS


def test_a_name_cannot_steer_the_terminal(engine: PretendEngine) -> None:
    engine.queue("evil\x1b[2Jname", 16, [9])
    engine.run_step(admit=2)
    assert not any("\x1b" in line.plain for line in frame(followed(engine), View(), 200, 40))


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (None, "-"),
        (1_234_567, "1.2ms"),
        (99_600_000, "100ms"),
        (1_260_000_000, "1.3s"),
        (125e9, "2m05s"),
        (2e13, "5h33m"),
    ],
)
def test_durations_are_short(nanoseconds: float | None, text: str) -> None:
    assert duration(nanoseconds) == text


def test_without_a_terminal_one_frame_is_printed(engine: PretendEngine, tmp_path: Path) -> None:
    end(engine.run, exit_code=5)
    command = [*KVTRACE, "top", str(engine.run), "--filter", "chat-1"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=30)
    assert "ended, exit code 5" in done.stdout
    assert "small-request" in done.stdout
    assert "waiting-request" not in done.stdout
    assert "\x1b" not in done.stdout
    command = [*KVTRACE, "top", str(tmp_path / "later"), "--once"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=30)
    assert "Waiting for a recording to start" in done.stdout


class Terminal:
    """A pseudo-terminal of 80 by 24 in which `kvtrace top` runs."""

    def __init__(self, run: Path) -> None:
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            try:
                termios.tcsetwinsize(0, (ROWS, COLUMNS))
                os.execve(KVTRACE[0], [*KVTRACE, "top", str(run)], {**os.environ, "TERM": "xterm"})
            finally:
                os._exit(99)
        self.output = Output(self.descriptor)

    def press(self, keys: str, shows: str) -> None:
        """Press keys and wait for what a later frame shows."""
        self.output.data = b""
        os.write(self.descriptor, keys.encode())
        self.output.read_until(re.escape(shows.encode()))

    def end(self, keys: str) -> tuple[int, bytes]:
        os.write(self.descriptor, keys.encode())
        shown = self.output.read_until(b"")
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), shown


@pytest.fixture
def open_top() -> Iterator[Callable[[Path], Terminal]]:
    opened: list[Terminal] = []

    def start(run: Path) -> Terminal:
        opened.append(Terminal(run))
        return opened[-1]

    yield start
    for terminal in opened:
        os.close(terminal.descriptor)


def test_keys_choose_what_is_shown(engine: PretendEngine, open_top: Callable[[Path], Terminal]) -> None:
    top = open_top(engine.run)
    top.output.read_until(b"small-request")
    top.press("t", "session ")
    top.press("t", "ended request")
    top.press("t", "small-request")
    top.press("/chat-2\r", "request /chat-2")
    assert b"small-request" not in top.output.data
    top.press("\x1b", "small-request")
    top.press("h", "any key goes back")
    top.press("x", "small-request")
    top.press("p", "paused")
    engine.run_step(admit=1)
    top.press("p", "3 running  0 waiting")
    code, shown = top.end("q")
    assert code == 0
    assert shown.endswith(b"\x1b[?25h\x1b[?1049l"), "the terminal is as before"


def test_ctrl_c_gives_the_terminal_back(engine: PretendEngine, open_top: Callable[[Path], Terminal]) -> None:
    top = open_top(engine.run)
    top.output.read_until(b"small-request")
    code, shown = top.end("\x03")
    assert code == 0
    assert shown.endswith(b"\x1b[?25h\x1b[?1049l")


def test_a_recording_that_starts_is_shown_without_a_key(tmp_path: Path, open_top: Callable[[Path], Terminal]) -> None:
    top = open_top(tmp_path / "run")
    top.output.read_until(b"Waiting for a recording to start")
    begin(tmp_path / "run")
    engine = PretendEngine(tmp_path / "run", model="models/tiny")
    engine.queue("first-request", 16, [1])
    engine.run_step(admit=1)
    top.output.read_until(b"first-request")
    assert top.end("q")[0] == 0
