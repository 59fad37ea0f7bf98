"""The run directory's `manifest.json`: what was launched, with what, when, how it ended."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kvtrace import __version__
from kvtrace.errors import KvtraceError
from kvtrace.format import layout


@dataclass(frozen=True)
class Manifest:
    """A recording's outer facts.

    `command` has no secrets in it. `pid` is the command's; until it has started, that of `kvtrace record`. `ended_ns`
    and `exit_code` are missing while it runs, and for ever if `kvtrace record` was killed. A negative `exit_code` is
    the signal that ended the command. `limits` are those of the recording (`kvtrace.capture.limits`), if it has any.
    `nsight` are Nsight Systems exports of the run, relative to the run directory. Times are UNIX nanoseconds.
    """

    command: list[str]
    started_ns: int
    pid: int | None = None
    ended_ns: int | None = None
    exit_code: int | None = None
    nsight: list[str] | None = None
    limits: dict[str, int] | None = None
    format_version: int = field(default=layout.FORMAT_VERSION, kw_only=True)
    kvtrace_version: str = field(default=__version__, kw_only=True)

    def write(self, run_dir: Path) -> None:
        """Write `manifest.json`, whole or not at all.

        Raises:
            KvtraceError: the directory cannot be written.
        """
        path = run_dir / layout.MANIFEST
        temporary = run_dir / f".{layout.MANIFEST}.tmp"
        facts = {key: value for key, value in asdict(self).items() if value is not None}
        try:
            with temporary.open("w", encoding="utf-8") as file:
                json.dump(facts, file, indent=2)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise KvtraceError(
                f"Cannot write {path}: {error.strerror}. Use -o to record in a directory that can be written.", 2
            ) from error


def read_facts(run_dir: Path) -> dict[str, object] | None:
    """The manifest's facts as they are, or None if there is no manifest or it is not one."""
    try:
        facts = json.loads((run_dir / layout.MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) and "format_version" in facts else None
