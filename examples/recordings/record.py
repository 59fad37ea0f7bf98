"""Makes the CPU recordings of this folder again: python examples/recordings/record.py [NAME...], from the root.

Each takes half a minute. Do it on an idle machine: other work shows as slow steps.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
COMMANDS = {
    "agents-clock": ["python", "examples/agents.py", "--clock"],
    "agents-small": ["python", "examples/agents.py", "--blocks", "121"],
    "agents-1": ["python", "examples/agents.py"],
    "agents-2": ["python", "examples/agents.py"],
    "agents-3": ["python", "examples/agents.py"],
}


def record(run: Path, command: list[str]) -> None:
    """Record a command, which is run from the root with this Python."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    record = [sys.executable, "-m", "kvtrace", "record", "--force", "-o", str(run), "--", *command]
    subprocess.run(record, env=environment, check=True)


def pack(run: Path, archive: Path) -> None:
    """Pack a run directory, without its trace, as a folder of its name."""

    def usual(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return None if member.name.endswith((".duckdb", ".lock")) else member

    with tarfile.open(archive, "w:xz", preset=9) as file:
        file.add(run, run.name, filter=usual)
    print(f"{archive.name}: {archive.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or COMMANDS:
            record(Path(folder) / name, COMMANDS[name])
            pack(Path(folder) / name, HERE / f"{name}.tar.xz")
