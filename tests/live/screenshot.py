"""Pictures of a terminal: of `kvtrace top` while a recording goes on, or of what another command prints.

python -m tests.live.screenshot RUN docs/images/top.png [KEYS]
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
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.record.processes import KVTRACE, is_readable
from tests.viewer.screenshot import take

ROWS, COLUMNS = 24, 80
FRAME = re.compile(r"\x1b\[(\d+);1H\x1b\[2K([^\n]*?)(?=\x1b\[\d+;1H|\x1b\[0J)")


def shown(run: Path, keys: str, seconds: float = 3) -> list[str]:
    """The lines of the terminal, with their colours, some seconds after keys were pressed."""
    pid, descriptor = pty.fork()
    if pid == 0:
        termios.tcsetwinsize(0, (ROWS, COLUMNS))
        os.execve(KVTRACE[0], [*KVTRACE, "top", str(run)], {**os.environ, "TERM": "xterm"})
    data, pressed, until = b"", False, time.monotonic() + 30
    while time.monotonic() < until:
        if is_readable(descriptor, 0.2):
            data += os.read(descriptor, 1 << 16)
        if not pressed and b"\x1b[24;1H" in data:
            os.write(descriptor, keys.encode())
            pressed, until = True, time.monotonic() + seconds
    os.write(descriptor, b"xq")  # x: out of the help
    os.waitpid(pid, 0)
    lines = [""] * ROWS
    for number, line in FRAME.findall(data.decode(errors="replace").split("\x1b[0J")[-2] + "\x1b[0J"):
        lines[int(number) - 1] = line
    return lines


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
