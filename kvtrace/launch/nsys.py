"""Nsight Systems: finds it, and makes the command line that runs a launch under it."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvtrace.errors import KvtraceError
from kvtrace.format import layout

NSYS_VARIABLE = "KVTRACE_NSYS"
"""Environment variable that names the nsys to use, or the folder it is in."""

_MACHINE = {"x86_64": "x64", "aarch64": "sbsa-armv8"}.get(platform.machine(), platform.machine())
_TOOL = ("bin/nsys", f"target-linux-{_MACHINE}/nsys")
_PLACES = (
    *(f"opt/nvidia/nsight-systems*/*/{tool}" for tool in _TOOL),
    "usr/local/cuda*/bin/nsys",
    *(f"usr/local/cuda*/nsight-systems-*/{tool}" for tool in _TOOL),
    f"opt/nvidia/nsight-compute/*/host/{_TOOL[1]}",  # Nsight Compute brings a collector of its own
    f"usr/local/cuda*/nsight-compute-*/host/{_TOOL[1]}",
)
_DEFAULTS = (
    (("-t", "--trace"), "cuda,nvtx"),
    (("--cuda-graph-trace",), "node"),
    (("--cuda-flush-interval",), "200"),  # vLLM's engine ends without the flush at exit
    (("--trace-fork-before-exec",), "true"),
    (("-s", "--sample"), "none"),
    (("--cpuctxsw",), "none"),
    (("-f", "--force-overwrite"), "true"),
)
_START = """
echo $$ >"$0"
if { true <&7 >&8 2>&9; } 2>/dev/null; then exec "$@" <&7 >&8 2>&9 7<&- 8>&- 9>&-; fi
exec "$@"
"""
"""Run by `sh` under nsys: tells the command's pid and gives it the streams that kvtrace passed as 7, 8 and 9, for those
that nsys would give it are pipes to nsys."""


@dataclass(frozen=True)
class Nsys:
    """An nsys, and what it is told beyond kvtrace's own choices."""

    program: Path
    arguments: tuple[str, ...] = ()

    @property
    def importer(self) -> Path | None:
        """The program beside it that makes a report of what was collected, if there is one."""
        home = self.program.resolve().parent.parent
        folders = (f"{base}{folder}" for base in ("", "host/") for folder in ("host-linux-*", "linux-desktop-*"))
        return next((file for folder in folders for file in _newest_first(home.glob(f"{folder}/QdstrmImporter"))), None)

    def profile(self, output: Path, pid_file: Path, program: Path, command: Sequence[str]) -> list[str]:
        """The command line that profiles `command` (whose program is found already) into `output`."""
        return [
            *(str(self.program), "profile", *self._defaults(), *self.arguments, "--output", str(output.absolute())),
            *("/bin/sh", "-c", _START, str(pid_file.absolute()), str(program), *command[1:]),
        ]

    def _defaults(self) -> Iterator[str]:
        """The choices of kvtrace; nsys refuses an option that is given twice, so the user's take their place."""
        for names, value in _DEFAULTS:
            if not any(_is_option(argument, names) for argument in self.arguments):
                yield f"{names[-1]}={value}"


def find_nsys(environment: Mapping[str, str], arguments: str = "", root: Path = Path("/")) -> Nsys:
    """The nsys to use: the one that KVTRACE_NSYS names, else on PATH, else in the usual places, newest version first.

    Args:
        environment: Where PATH, CUDA_HOME and KVTRACE_NSYS are looked up.
        arguments: The user's own options for `nsys profile`, as one shell text.
        root: Where the usual places are.

    Raises:
        KvtraceError: There is none, or `arguments` cannot be used.
    """
    own = _split(arguments)
    named = environment.get(NSYS_VARIABLE)
    if named:
        path = Path(named) / "nsys" if Path(named).is_dir() else Path(named)
        if not _is_program(path):
            raise KvtraceError(f"{NSYS_VARIABLE}={named} is not nsys: name the program or its folder.", 2)
        return Nsys(path, own)
    found = next((path for path in _candidates(environment, root) if _is_program(path)), None)
    if found is None:
        switches = shlex.join(Nsys(Path("nsys"), own)._defaults())
        raise KvtraceError(
            "nsys was found neither on PATH nor in the folders of CUDA, Nsight Systems and Nsight Compute. Install "
            f"Nsight Systems, or name one in {NSYS_VARIABLE}. With an nsys elsewhere, run it around kvtrace: "
            f"nsys profile {switches} -o profile kvtrace record ...",
            2,
        )
    return Nsys(found, own)


def pid_file(run_dir: Path) -> Path:
    """File in which the command's pid is written."""
    return run_dir / layout.COMMAND_PID


def command_pid(run_dir: Path) -> int | None:
    """The pid of the command that runs under nsys; None before it has started and when it has gone."""
    told = pid_file(run_dir)
    try:
        pid, told_s = int(told.read_text()), told.stat().st_mtime
        state, *facts = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    started_s = booted_s + int(facts[18]) / os.sysconf("SC_CLK_TCK")
    is_another = started_s > told_s + 1  # a later process may have got its number
    return None if is_another or state in "ZX" else pid


def _candidates(environment: Mapping[str, str], root: Path) -> Iterator[Path]:
    on_path = shutil.which("nsys", path=environment.get("PATH"))
    if on_path:
        yield Path(on_path)
    for home in filter(None, map(environment.get, ("CUDA_HOME", "CUDA_PATH"))):
        yield Path(home, "bin", "nsys")
        for tool in _TOOL:
            yield from _newest_first(Path(home).glob(f"nsight-systems-*/{tool}"))
        yield from _newest_first(Path(home).glob(f"nsight-compute-*/host/{_TOOL[1]}"))
    for place in _PLACES:
        yield from _newest_first(root.glob(place))


def _newest_first(paths: Iterable[Path]) -> list[Path]:
    def version(path: Path) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", str(path))]

    return sorted(paths, key=version, reverse=True)


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _split(arguments: str) -> tuple[str, ...]:
    try:
        own = tuple(shlex.split(arguments))
    except ValueError as error:
        raise KvtraceError(f"--nsys-args cannot be split as shell words ({error}): {arguments}", 2) from error
    for argument in own:
        if _is_option(argument, ("-o", "--output")):
            raise KvtraceError(
                f"--nsys-args has {argument}, but the report goes to the run directory: leave it out and use -o RUN.",
                2,
            )
    return own


def _is_option(argument: str, names: Iterable[str]) -> bool:
    """Return whether an argument is one of these options, with or without its value: --trace=x, --trace, -t, -tx."""
    return any(argument == name or argument.startswith(f"{name}=" if name.startswith("--") else name) for name in names)
