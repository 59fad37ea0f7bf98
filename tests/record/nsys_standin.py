"""Stands for Nsight Systems at its command line only: nothing is profiled, and the "reports" are empty shells.

It behaves as nsys 2025.3.1 was seen to: it runs the command in a session of its own with pipes for its output, passes
on SIGINT, SIGTERM and SIGQUIT (others end it), ends with the command's code (128 + n after signal n), refuses options
that it does not know or gets twice, and talks on stdout. tests/gpu/test_nsys.py runs the real one.

STANDIN_LEAVES: what `profile` leaves behind: report (default), collected (only a .qdstrm), nothing.
STANDIN_EXPORT: what `export` does: works (default), fails half way.
STANDIN_SAW: a file for the arguments and environment of `profile`.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

OPTIONS = {
    "-t": "--trace",
    "-s": "--sample",
    "-f": "--force-overwrite",
    "-o": "--output",
    "-d": "--duration",
    "-y": "--delay",
    "--cuda-graph-trace": "",
    "--cuda-flush-interval": "",
    "--trace-fork-before-exec": "",
    "--cpuctxsw": "",
    "--kill": "",
}
LONG = {long or short for short, long in OPTIONS.items()}


def main(arguments: list[str]) -> None:
    if arguments[0] == "export":
        export(arguments[1:])
    options, command = parse(arguments[1:])
    if saw := os.environ.get("STANDIN_SAW"):
        names = [name for name in os.environ if name.startswith("KVTRACE_")]
        seen = {"options": options, "command": command, "environment": {name: os.environ[name] for name in names}}
        Path(saw).write_text(json.dumps(seen))
    code = run(command, float(options.get("--duration", "inf")), options.get("--kill", "sigterm"))
    leaves = os.environ.get("STANDIN_LEAVES", "report")
    if leaves != "nothing":
        left = options["--output"] + (".nsys-rep" if leaves == "report" else ".qdstrm")
        Path(left).write_text("stand-in")
        print(f"Generated:\n\t{left}", flush=True)
    if leaves == "collected":
        print("Importer error status: An unknown error occurred.", file=sys.stderr)
    sys.stderr.flush()
    os._exit(code)


def parse(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    while arguments and arguments[0].startswith("-"):
        name, equals, value = arguments.pop(0).partition("=")
        if not name.startswith("--") and len(name) > 2:
            name, value, equals = name[:2], name[2:], "="
        name = OPTIONS.get(name) or name
        if name not in LONG:
            refuse(f"unrecognised option '{name}'")
        if name in options:
            refuse(f"option '{name}' cannot be specified more than once")
        options[name] = value if equals else arguments.pop(0)
    return options, arguments


def refuse(reason: str) -> NoReturn:
    print(f"{reason}\n\nusage: nsys profile [<args>] [application]\nTry 'nsys profile --help'.", file=sys.stderr)
    sys.exit(1)


def run(command: list[str], duration_s: float, kill: str) -> int:
    """With --duration nsys ends when that is over, without waiting for a command that goes on, and with 0."""
    print("Collecting data...", flush=True)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen(command, start_new_session=True, close_fds=False, **pipes)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, lambda number, frame: child.send_signal(number))
    relays = [
        threading.Thread(target=lambda source=source, sink=sink: sink.buffer.write(source.read()), daemon=True)
        for source, sink in ((child.stdout, sys.stdout), (child.stderr, sys.stderr))
    ]
    for relay in relays:
        relay.start()
    try:
        code = child.wait(None if duration_s == float("inf") else duration_s)
    except subprocess.TimeoutExpired:
        if kill != "none":
            child.terminate()
        return 0
    for relay in relays:
        relay.join()
    return code if code >= 0 else 128 - code


def export(arguments: list[str]) -> NoReturn:
    target = Path(arguments[arguments.index("--output") + 1])
    source = Path(arguments[-1])
    if not source.exists():
        refuse(f"{source} does not exist")
    if os.environ.get("STANDIN_EXPORT") == "fails":
        target.write_text("half")
        sys.exit(1)
    with sqlite3.connect(target) as connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
