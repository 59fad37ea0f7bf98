"""Asks the command's own Python, before anything starts, whether it has vLLM and kvtrace.

Only a command that certainly runs on a certain Python is asked about; any other goes ahead unasked.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvtrace import __version__
from kvtrace.errors import KvtraceError

_TIMEOUT_S = 10
_PYTHON = re.compile(r"(python|pypy)\d*(\.\d+)?t?")
_PYTHON_FLAGS = re.compile(r"-[bBdEIOPqsSuvx]+")
_QUESTION = """
import sys
if not getattr(sys.flags, "safe_path", False):
    sys.path[0] = sys.argv[1]
import json, os
from importlib import machinery, metadata, util
def found(name):
    try:
        spec = util.find_spec(name)
    except Exception:
        return False
    return spec is not None and spec.origin is not None
def plugin():
    try:
        kvtrace = metadata.distribution("kvtrace")
    except metadata.PackageNotFoundError:
        return None
    points = [p for p in kvtrace.entry_points if p.group == "vllm.general_plugins" and p.name == "kvtrace"]
    return kvtrace.version if points and found("kvtrace") else None
def compiled():
    folders = util.find_spec("kvtrace").submodule_search_locations
    names = ["_native" + suffix for suffix in machinery.EXTENSION_SUFFIXES]
    return any(os.path.exists(os.path.join(folder, "capture", name)) for folder in folders for name in names)
answer = {"kvtrace": plugin(), **{name: found(name) for name in ("vllm", "pip", "nvtx")}}
answer["compiled"] = bool(answer["kvtrace"]) and compiled()
print(json.dumps(answer))
"""


@dataclass(frozen=True)
class Interpreter:
    """The Python a command runs on.

    `flags` are those that change where it finds packages; `first_path` is what it puts first in `sys.path`.
    """

    python: str
    flags: tuple[str, ...] = ()
    first_path: str = ""


def find_program(name: str, environment: Mapping[str, str]) -> Path:
    """The file that a command's first word names.

    Raises:
        KvtraceError: there is none (exit code 127), or it cannot be executed (126).
    """
    path = shutil.which(name, path=environment.get("PATH"))
    if path is not None:
        return Path(path)
    if "/" in name and Path(name).exists():
        what = "is a directory" if Path(name).is_dir() else "is not executable"
        raise KvtraceError(f"{name} {what}; expected a command to run. Try: kvtrace record -- python {name}", 126)
    if "/" in name:
        raise KvtraceError(f"{name}: no such file; expected a command to run.", 127)
    beside = Path(sys.executable).parent / name
    hint = f"Try {beside}, or activate its environment." if beside.exists() else "Is its environment activated?"
    raise KvtraceError(f"{name}: command not found in PATH. {hint}", 127)


def find_interpreter(program: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> Interpreter | None:
    """The Python that runs `program` with `arguments`, or None if that cannot be told from outside."""
    if _PYTHON.fullmatch(program.name):
        return _from_python_command(str(program), arguments)
    shebang = _shebang(program)
    if not shebang:
        return None
    python, *flags = _without_env(shebang)
    if not _PYTHON.fullmatch(Path(python).name):
        return None
    found = shutil.which(python, path=environment.get("PATH"))
    return Interpreter(found, tuple(flags), str(program.resolve().parent)) if found else None


def check(
    interpreter: Interpreter, environment: Mapping[str, str], *, needs_nvtx: bool = False, wants_nvtx: bool = False
) -> list[str]:
    """Ask the interpreter whether vLLM can be imported there and would load kvtrace's probes.

    Returns:
        Warnings: its kvtrace is of another version, NVTX is wanted and missing.

    Raises:
        KvtraceError: vLLM, kvtrace or its compiled part is missing, or NVTX and it is needed.
    """
    answer = _ask(interpreter, environment)
    if answer is None:
        return []
    python = interpreter.python
    if not answer.get("vllm"):
        raise KvtraceError(
            f"vLLM is not installed for {python}, which the command runs on. "
            f"Use the Python that has it, or --no-preflight if the command starts vLLM elsewhere.",
            2,
        )
    pip = f"{python} -m pip install" if answer.get("pip") else f"uv pip install --python {python}"
    version = answer.get("kvtrace")
    if not version:
        raise KvtraceError(
            f"kvtrace is not installed for {python}, which the command runs on, so vLLM would not record. "
            f"Install it there: {pip} kvtrace",
            2,
        )
    warnings = []
    if version != __version__:
        warnings.append(f"{python} has kvtrace {version}, but this is kvtrace {__version__}: install the same in both.")
    elif not answer.get("compiled"):
        raise KvtraceError(
            f"kvtrace was installed without its compiled part for {python}, which the command runs on, so vLLM would "
            f"not record. Install it again, from a wheel or where there are a C compiler and Python's headers: "
            f"{pip} --force-reinstall kvtrace",
            2,
        )
    if (needs_nvtx or wants_nvtx) and not answer.get("nvtx"):
        missing = f"The package nvtx is not installed for {python}, which the command runs on"
        if needs_nvtx:
            raise KvtraceError(f"{missing}, so --nvtx cannot work. Install it there: {pip} nvtx", 2)
        warnings.append(f"{missing}, so the profile will not name kvtrace's steps. Install it there: {pip} nvtx")
    return warnings


def _ask(interpreter: Interpreter, environment: Mapping[str, str]) -> dict[str, object] | None:
    try:
        result = subprocess.run(
            [interpreter.python, *interpreter.flags, "-c", _QUESTION, interpreter.first_path],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=True,
        )
        answer = json.loads(result.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return answer if isinstance(answer, dict) else None


def _from_python_command(python: str, arguments: Sequence[str]) -> Interpreter | None:
    flags: list[str] = []
    for argument in arguments:
        if _PYTHON_FLAGS.fullmatch(argument):
            flags.append(argument)
        elif argument.startswith(("-m", "-c")):
            return Interpreter(python, tuple(flags))
        elif argument.startswith("-"):
            return None
        else:
            return Interpreter(python, tuple(flags), str(Path(argument).resolve().parent))
    return None


def _shebang(program: Path) -> list[str]:
    try:
        with program.open("rb") as file:
            head = file.read(4096).decode(errors="replace").splitlines()
    except OSError:
        return []
    if not head or not head[0].startswith("#!"):
        return []
    if len(head) > 1 and head[0] == "#!/bin/sh" and head[1].startswith("'''exec' "):
        words = shlex.split(head[1].removeprefix("'''exec' "))  # what pip and uv write when the path is long or spaced
        return words[:1]
    return head[0].removeprefix("#!").split(maxsplit=1)


def _without_env(shebang: list[str]) -> list[str]:
    """The interpreter and its flags, looking through `/usr/bin/env [-S] [NAME=VALUE...]`."""
    if Path(shebang[0]).name != "env" or len(shebang) < 2:
        return shebang
    words = shebang[1].split()
    while words and (words[0].startswith("-") or "=" in words[0]):
        words = words[1:]
    return words or shebang
