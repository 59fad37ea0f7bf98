"""Pictures of a terminal: of `kvtrace top` while a recording goes on, or of what another command prints.

python -m tests.live.screenshot RUN top.png [KEYS]                                    a recording that goes on
python -m tests.live.screenshot --while "python examples/agents.py" docs/images/top.png    one that is made for it
python -m tests.live.screenshot --of "kvtrace findings RUN" docs/images/findings.png
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.record.processes import KVTRACE, is_readable
from tests.viewer.screenshot import take

ROWS, COLUMNS = 24, 80
FRAME = re.compile(r"\x1b\[(\d+);1H\x1b\[2K([^\n]*?)(?=\x1b\[\d+;1H|\x1b\[0J)")
QUEUES = re.compile(r"(\d+) running  (\d+) waiting")
STARTED_S = 120
FEWER_ROWS = 20


def frames(run: Path, keys: str, rows: int, until: Callable[[], bool]) -> list[list[str]]:
    """The frames of `kvtrace top` after keys were pressed, each as lines with their colours, until something is so."""
    pid, descriptor = pty.fork()
    if pid == 0:
        termios.tcsetwinsize(0, (rows, COLUMNS))
        os.execve(KVTRACE[0], [*KVTRACE, "top", str(run)], {**os.environ, "TERM": "xterm"})
    data, pressed = b"", False
    while not until():
        if is_readable(descriptor, 0.2):
            data += os.read(descriptor, 1 << 16)
        if not pressed and f"\x1b[{rows};1H".encode() in data:
            os.write(descriptor, keys.encode())
            data, pressed = b"", True
    os.write(descriptor, b"xq")  # x: out of the help
    os.waitpid(pid, 0)
    return [lines_of(text, rows) for text in data.decode(errors="replace").split("\x1b[0J")[:-1]]


def lines_of(text: str, rows: int) -> list[str]:
    """The lines of one frame."""
    lines = [""] * rows
    for number, line in FRAME.findall(text + "\x1b[0J"):
        lines[int(number) - 1] = line
    return lines


def shown(run: Path, keys: str, seconds: float = 3) -> list[str]:
    """The terminal some seconds after keys were pressed."""
    end = time.monotonic() + seconds + 2  # to start
    return frames(run, keys, ROWS, lambda: time.monotonic() > end)[-1]


def busiest(command: str, rows: int) -> list[str]:
    """The terminal when most requests were in the engine of a command that is recorded meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = [*KVTRACE, "record", "-o", str(run), "--", sys.executable, *shlex.split(command)[1:]]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as recording:
            end = time.monotonic() + STARTED_S
            while not (run / "manifest.json").exists() and time.monotonic() < end:
                time.sleep(0.1)
            found = frames(run, "", rows, lambda: recording.poll() is not None)

    def requests(lines: list[str]) -> int:
        queues = QUEUES.search(Text.from_ansi("\n".join(lines)).plain)
        return sum(map(int, queues.groups())) if queues else 0

    return max(found, key=requests)


def printed(command: str) -> list[str]:
    """A command's line and those that it prints."""
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [f"$ {command}", *done.stdout.rstrip().split("\n")]


def picture(lines: list[str], title: str) -> str:
    """The terminal as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(Text.from_ansi(line), no_wrap=True, overflow="crop")
    return console.export_svg(title=title)


def main() -> None:
    if sys.argv[1] == "--of":
        command, target = sys.argv[2], Path(sys.argv[3])
        lines, title = printed(command), " ".join(command.split()[:2])
    elif sys.argv[1] == "--while":
        target = Path(sys.argv[3])
        lines, title = busiest(sys.argv[2], FEWER_ROWS), "kvtrace top"
    else:
        run, target, keys = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""
        lines, title = shown(run, keys), "kvtrace top"
    svg = re.sub(r"@font-face \{[^}]*\}", "", picture(lines, title))  # nothing is fetched
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "top.html"
        style = "margin: 0; overflow: hidden; background: #292929"  # the terminal's own, around its round corners
        page.write_text(f"<html data-state=ready data-loading=false><body style='{style}'>{svg}")
        take(page, target, 1000, 55 + round(24.4 * len(lines)))


if __name__ == "__main__":
    main()
