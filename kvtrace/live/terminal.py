"""The terminal of `kvtrace top`: draws frames and reads keys."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.text import Text

from kvtrace.live.follow import Follower
from kvtrace.live.screen import SMALLEST_WIDTH, frame, help_frame
from kvtrace.live.view import Sort, Table, View

Choice = TypeVar("Choice", Table, Sort)

POLL_S = 1.0
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_ESCAPE = "\x1b"


class Top:
    """The loop of `kvtrace top`.

    Args:
        follower: The followed recording.
        view: What is shown at first.
    """

    def __init__(self, follower: Follower, view: View) -> None:
        self._follower = follower
        self._view = view
        self._typing: str | None = None
        self._paused: list[Text] | None = None
        self._help = False

    def run(self) -> None:
        """Draw until `q` or Ctrl-C."""
        with _terminal():
            while True:
                self._follower.poll()
                self._draw()
                until = time.monotonic() + POLL_S
                while (left := until - time.monotonic()) > 0:
                    if select.select([sys.stdin], [], [], left)[0]:
                        keys = os.read(sys.stdin.fileno(), 1024).decode(errors="replace")
                        if not keys or not all(self.press(key) for key in keys):
                            return
                        self._draw()

    def press(self, key: str) -> bool:
        """Take up a key; False ends."""
        view = self._view
        if self._typing is not None:
            self._type(key)
        elif self._help:
            self._help = False
        elif key == "q":
            return False
        elif key == "t":
            view.table = _next(view.table)
        elif key == "s":
            view.sort = _next(view.sort)
        elif key == "e" and self._follower.engines:
            following = 0 if view.engine is None else view.engine + 1
            view.engine = following if following < len(self._follower.engines) else None
        elif key == "p":
            self._paused = None if self._paused else self._frame(" paused: p goes on")
        elif key == "h":
            self._help = True
        elif key == "/":
            self._typing = view.filter
        elif key == _ESCAPE:
            view.filter = ""
        return True

    def _type(self, key: str) -> None:
        assert self._typing is not None
        if key in "\r\n":
            self._view.filter, self._typing = self._typing, None
        elif key == _ESCAPE:
            self._view.filter, self._typing = "", None
        elif key in "\x7f\b":
            self._typing = self._typing[:-1]
        elif key.isprintable():
            self._typing += key

    def _frame(self, note: str = "") -> list[Text]:
        size = os.get_terminal_size(sys.stdout.fileno())
        if self._help:
            return help_frame(size.columns, size.lines)
        if self._typing is not None:
            note = f"/{self._typing}_   Enter: show only these   Escape: show all"
        return frame(self._follower, self._view, size.columns, size.lines, note)

    def _draw(self) -> None:
        lines = self._paused if self._paused and not self._help and self._typing is None else self._frame()
        width = os.get_terminal_size(sys.stdout.fileno()).columns
        console = Console(width=width, force_terminal=True, highlight=False, legacy_windows=False)
        with console.capture() as capture:
            for number, line in enumerate(lines, 1):
                console.print(f"\x1b[{number};1H\x1b[2K", end="", markup=False, soft_wrap=True)
                console.print(line, end="", no_wrap=True, overflow="crop", soft_wrap=True)
        sys.stdout.write(capture.get() + "\x1b[0J")
        sys.stdout.flush()


def plain_frame(follower: Follower, view: View) -> str:
    """A frame without colours or keys, for what is no terminal."""
    lines = frame(follower, view, SMALLEST_WIDTH, 1 << 10)
    text = "\n".join(line.plain.rstrip() for line in lines[:-1])
    return text.rstrip("\n") + "\n"


def _next(current: Choice) -> Choice:
    members = list(type(current))
    return members[(members.index(current) + 1) % len(members)]


@contextmanager
def _terminal() -> Iterator[None]:
    """The other screen, and keys one by one without echo; all as before at the end."""
    before = termios.tcgetattr(sys.stdin.fileno())
    try:
        tty.setcbreak(sys.stdin.fileno())
        sys.stdout.write(_ENTER)
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)
