"""Environments of their own: real interpreters that have kvtrace and what it needs, and only what a test adds."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Environment:
    """A Python, with the environment variables and the folder that it is run with."""

    python: str
    variables: dict[str, str]
    folder: Path

    def run(self, *arguments: str, before: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
        command = [self.python, "-m", "kvtrace", "doctor", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, env=self.variables, cwd=self.folder, preexec_fn=before, check=False
        )

    def told(self, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
        """The exit code, and the checks by name."""
        done = self.run("--json", *arguments)
        return done.returncode, {check["check"]: check for check in json.loads(done.stdout)["checks"]}

    def checks(self, *arguments: str) -> dict[str, dict[str, Any]]:
        return self.told(*arguments)[1]


@pytest.fixture
def bare(tmp_path: Path) -> Environment:
    """A Python that has kvtrace and the packages that it cannot do without."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    site = site_of(str(venv / "bin" / "python"))
    for distribution in needed_by("kvtrace", set()):
        for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__", "kvtrace"}:
            if not name.startswith("__editable__") and not (site / name).exists():
                (site / name).symlink_to(Path(str(distribution.locate_file(name))))
    (site / "kvtrace").symlink_to(ROOT / "kvtrace")
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "KVTRACE_NSYS")}
    return Environment(str(venv / "bin" / "python"), variables, tmp_path)


def needed_by(name: str, seen: set[str]) -> Iterator[metadata.Distribution]:
    """Yield a distribution and those it requires without any extra."""
    if name.lower() in seen:
        return
    seen.add(name.lower())
    # A checkout has an egg-info of its own after `pip install -e`, which lists sources.
    installed = [path for path in sys.path if path and Path(path) != ROOT]
    distribution = next(iter(metadata.distributions(name=name, path=installed)), None)
    if distribution is None:  # for another Python or system
        return
    yield distribution
    for requirement in distribution.requires or ():
        name, _, marker = requirement.partition(";")
        if "extra ==" not in marker and (match := re.match(r"[\w.-]+", name)):
            yield from needed_by(match[0], seen)


def site_of(python: str) -> Path:
    return next((Path(python).parents[1] / "lib").glob("python*/site-packages"))


def copy_vllm(site: Path) -> Path:
    """Copy the installed vLLM's sources, which need none of its dependencies to be read."""
    spec = util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).parent

    def others(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if not name.endswith(".py") and not Path(folder, name).is_dir()]

    return Path(shutil.copytree(source, site / "vllm", ignore=others, copy_function=os.symlink))


def edit(path: Path, old: str, new: str) -> None:
    """Replace text in a linked file by one of its own."""
    text = path.read_text()
    assert old in text
    path.unlink()
    path.write_text(text.replace(old, new))
