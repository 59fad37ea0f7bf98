"""The status line: the terminal's last row while a command runs that writes to the same terminal.

The command writes to the terminal itself, so a line at the cursor would end up between its words. Instead the last row
is taken out of the scroll region, as apt does: what the command prints scrolls above it and is never touched. A single
`write` is atomic on a terminal; the cursor and colours are saved and restored within it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from rich.console import Console
from rich.text import Text

from kvtrace.launch.meter import Reading

INTERVAL_S = 0.5
_FEWEST_ROWS = 4
_SAVE, _RESTORE = "\x1b7", "\x1b8"
_ROW_BELOW = "\x1bD\x1b[A"  # makes a row below the cursor, scrolling if need be, and keeps the column


class StatusLine:
    """Draws on a terminal that this process may not be alone on."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size: os.terminal_size | None = None

    def draw(self, text: Text) -> None:
        """Show `text`, cut to the terminal's width. Does nothing while this job is in the background."""
        if not _in_foreground(self._descriptor):
            return
        with suppress(OSError):
            size = os.get_terminal_size(self._descriptor)
            if size.lines < _FEWEST_ROWS:
                return
            start = "" if size == self._size else self._take_last_row(size)
            row = f"{_SAVE}\x1b[{size.lines};1H\x1b[0m\x1b[2K{_render(text, size.columns - 1)}{_RESTORE}"
            self._write(start + row)
            self._size = size

    def clear(self) -> None:
        """Give the last row back and leave the cursor where the command's output ended."""
        if self._size is not None:
            with suppress(OSError):
                self._write(f"{_SAVE}\x1b[{self._size.lines};1H\x1b[0m\x1b[2K\x1b[r{_RESTORE}")
            self._size = None

    def _take_last_row(self, size: os.terminal_size) -> str:
        """Escape codes that end scrolling one row early. Setting the region moves the cursor, hence saving it."""
        whole = f"{_SAVE}\x1b[r{_RESTORE}" if self._size else ""
        return f"{whole}{_ROW_BELOW}{_SAVE}\x1b[1;{size.lines - 1}r{_RESTORE}"

    def _write(self, text: str) -> None:
        os.write(self._descriptor, text.encode())


def is_usable(descriptor: int, environment: Mapping[str, str]) -> bool:
    """Return whether a status line can be shown there: a terminal that understands more than plain text."""
    return os.isatty(descriptor) and environment.get("TERM", "dumb") not in ("", "dumb", "unknown")


def begin_line(descriptor: int, environment: Mapping[str, str]) -> None:
    """Begin a line on the terminal if the command left its last one open.

    Where the cursor is cannot be asked without reading the command's input, but a row of spaces goes on to the next row
    only from elsewhere than the first column.
    """
    if is_usable(descriptor, environment) and _in_foreground(descriptor):
        with suppress(OSError):
            os.write(descriptor, b" " * os.get_terminal_size(descriptor).columns + b"\r\x1b[K")


def status_text(reading: Reading | None, elapsed_ns: int) -> Text:
    """One line about the recording so far."""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(" kvtrace ", style="reverse")
    text.append(f" {_clock(elapsed_ns)}")
    if reading is None:
        return text.append("  the recording cannot be read at the moment", style="yellow")
    if not reading.processes:
        return text.append("  nothing recorded yet; recording begins with the first request", style="dim")
    rate = "-" if reading.steps_per_s is None else f"{reading.steps_per_s:,.1f}"
    noun = "process" if reading.processes == 1 else "processes"
    text.append(f"  {reading.processes} {noun}  {reading.records:,} records  {size(reading.bytes)}  {rate} steps/s  ")
    return text.append(f"{reading.dropped:,} dropped", style="bold red" if reading.dropped else "")


def size(count: int) -> str:
    """A number of bytes in the unit that suits it."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"


def _clock(elapsed_ns: int) -> str:
    minutes, seconds = divmod(elapsed_ns // 1_000_000_000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _render(text: Text, width: int) -> str:
    console = Console(width=max(width, 1), force_terminal=True, legacy_windows=False)
    with console.capture() as capture:
        console.print(text, end="", no_wrap=True, overflow="ellipsis", crop=True)
    return capture.get().rstrip("\n")


def _in_foreground(descriptor: int) -> bool:
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False
