"""The package as users get it: complete, importable, light, documented."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from kvtrace.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
ROOMS = ("probes", "ingest", "queries", "viewer", "lab")
OWN = ROOT / "kvtrace"
WEB = ROOT / "viewer" / "web"
"""Sources of the shipped page."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from an sdist as the registry would: nothing that git ignores goes in."""
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    subprocess.run(
        f"tar -C {ROOT} --null -T - -cf - | (mkdir {source} && tar -C {source} -xf -)",
        shell=True,
        input=files,
        check=True,
    )
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    [built] = folder.glob("*.whl")
    return built


def test_every_module_of_every_room_is_in_the_wheel(wheel: Path) -> None:
    packaged = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"kvtrace/{file.relative_to(ROOT).as_posix()}"
        for room in ROOMS
        for pattern in ("*.py", "*.sql", "*.html", "*.js", "*.css", "*.j2")
        for file in (ROOT / room).rglob(pattern)
        if not file.is_relative_to(WEB)
    }
    own = (file for file in OWN.rglob("*") if file.suffix in {".py", ".html", ".css", ".j2", ".json"})
    expected |= {file.relative_to(ROOT).as_posix() for file in own}
    assert expected - packaged == set()
    assert "kvtrace/py.typed" in packaged


def test_building_leaves_nothing_that_a_later_build_would_take(wheel: Path) -> None:
    left = [path.name for path in (wheel.parent / "source").iterdir() if path.name.endswith(("build", "egg-info"))]
    assert left == []


def test_declared_packages_are_the_folders(wheel: Path) -> None:
    declared = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    folders = {".".join(init.parent.relative_to(ROOT).parts) for init in OWN.rglob("__init__.py")}
    for room in ROOMS:
        for init in (ROOT / room).rglob("__init__.py"):
            folders.add("kvtrace." + ".".join(init.parent.relative_to(ROOT).parts))
    assert declared == folders


def test_the_installed_wheel_runs_from_elsewhere(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    script = (
        "import kvtrace, sys; from kvtrace.cli.main import main; print(kvtrace.__file__); "
        "sys.argv = ['kvtrace', '--help']; main()"
    )
    environment = {"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "site") in done.stdout
    for command in COMMANDS:
        assert command in done.stdout


def test_recording_imports_nothing_heavy() -> None:
    """The plugin runs in every vLLM process, the launcher before every launch."""
    script = (
        "import sys, os; os.environ['KVTRACE_RUN_DIR'] = '/nonexistent'; "
        "from kvtrace.probes import plugin; plugin.load(); from kvtrace import launch; "
        "print([name for name in ('duckdb', 'pandas', 'pyarrow', 'numpy', 'torch', 'vllm', 'cupy', 'typer') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", ["--help", "query --help", "doctor --help", "--version"])
def test_help_imports_nothing_heavy(arguments: str) -> None:
    script = (
        f"import sys; sys.argv = 'kvtrace {arguments}'.split()\n"
        "from kvtrace.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = ('duckdb', 'pyarrow', 'pandas', 'numpy', 'matplotlib', 'rich', 'vllm', 'torch', 'cupy')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout
    assert done.stderr.strip() == "[]"


def test_ctrl_c_while_the_command_is_imported_ends_it_without_a_traceback() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["kvtrace"].partition(":")
    script = (
        "import signal, sys\n"
        f"from {module} import {function} as command\n"
        "class Pressed:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'typer': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Pressed)\n"
        "command()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_extra_all_has_what_the_others_have() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    def packages(extra: str) -> set[str]:
        found: set[str] = set()
        for requirement in extras[extra]:
            own = re.fullmatch(r"kvtrace\[(.*)\]", requirement)
            found |= set().union(*map(packages, own[1].split(","))) if own else {requirement}
        return found

    for extra in set(extras) - {"dev", "fuzz"}:
        assert packages(extra) <= packages("all"), extra
        assert packages(extra), extra


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_not_a_package_of_its_own(room: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {room}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert f"import kvtrace.{room}" in done.stderr


def test_the_event_reference_is_up_to_date() -> None:
    from kvtrace.ingest.reference import page

    assert (ROOT / "docs" / "events.md").read_text() == page(), "run `make docs`"
