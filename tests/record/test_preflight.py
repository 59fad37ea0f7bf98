from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvtrace import __version__
from kvtrace.errors import KvtraceError
from kvtrace.launch.preflight import Interpreter, check, find_interpreter, find_program


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has nothing installed."""
    venv = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    return str(venv / "bin" / "python")


@pytest.fixture
def clean() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def install(python: str, package: str) -> Path:
    """Put an empty package where that Python finds it."""
    site = next((Path(python).parent.parent / "lib").glob("python*/site-packages"))
    (site / package).mkdir()
    (site / package / "__init__.py").write_text("raise SystemExit('imported')")
    return site


def test_a_missing_command_is_127() -> None:
    with pytest.raises(KvtraceError, match="no-such-command") as caught:
        find_program("no-such-command", os.environ)
    assert caught.value.exit_code == 127


def test_a_file_that_is_not_executable_is_126(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    with pytest.raises(KvtraceError, match="not executable") as caught:
        find_program(str(tmp_path / "x.py"), os.environ)
    assert caught.value.exit_code == 126


def test_a_command_beside_kvtraces_own_python_is_suggested() -> None:
    name = Path(sys.executable).name
    with pytest.raises(KvtraceError, match=str(Path(sys.executable).parent / name)):
        find_program(name, {"PATH": "/nowhere"})


@pytest.mark.parametrize(
    "head",
    [
        "#!{python}\n",
        "#! {python} -E\n",
        "#!/usr/bin/env python3\n",
        "#!/usr/bin/env -S A=b python3 -u\n",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
    ],
)
def test_the_python_of_a_script(tmp_path: Path, head: str) -> None:
    python = shutil.which("python3")
    program = executable(tmp_path / "vllm", head.format(python=python))
    found = find_interpreter(program, ["serve"], os.environ)
    assert found is not None
    assert found.python == python
    assert found.first_path == str(tmp_path)


def test_the_python_of_a_python_command() -> None:
    python = Path(sys.executable)
    assert find_interpreter(python, ["-I", "-m", "vllm"], os.environ) == Interpreter(str(python), ("-I",), "")
    assert find_interpreter(python, ["/a/b.py", "-m"], os.environ) == Interpreter(str(python), (), "/a")


@pytest.mark.parametrize("head", ["#!/bin/bash\npython x", "\x7fELF", "", "#!"])
def test_other_commands_are_not_guessed_about(tmp_path: Path, head: str) -> None:
    assert find_interpreter(executable(tmp_path / "run", head), [], os.environ) is None


def test_a_python_without_vllm_is_named(bare_python: str, clean: dict[str, str]) -> None:
    with pytest.raises(KvtraceError, match="vLLM is not installed") as caught:
        check(Interpreter(bare_python), clean)
    assert bare_python in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_python_without_kvtrace_gets_its_install_command(
    bare_python: str, clean: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a checkout has kvtrace's metadata, and `python -m` looks there
    site = install(bare_python, "vllm")
    try:
        with pytest.raises(KvtraceError, match=f"pip install --python {bare_python} kvtrace"):
            check(Interpreter(bare_python), clean)
    finally:
        shutil.rmtree(site / "vllm")


@pytest.fixture
def python_without_nvtx(tmp_path: Path) -> Interpreter:
    """A Python that has a vLLM and this kvtrace, as far as can be seen without importing them."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = str(venv / "bin" / "python")
    install(python, "vllm")
    site = install(python, "kvtrace")
    (site / "kvtrace" / "capture").mkdir(exist_ok=True)
    (site / "kvtrace" / "capture" / "_native.abi3.so").touch()
    metadata = site / f"kvtrace-{__version__}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kvtrace\nVersion: {__version__}\n")
    (metadata / "entry_points.txt").write_text("[vllm.general_plugins]\nkvtrace = kvtrace.probes.plugin:load\n")
    return Interpreter(python)


def test_a_kvtrace_without_its_compiled_part_is_refused(
    python_without_nvtx: Interpreter, clean: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a checkout may have it
    assert check(python_without_nvtx, clean) == []
    [compiled] = tmp_path.rglob("_native*")
    compiled.unlink()
    with pytest.raises(KvtraceError, match=r"without its compiled part.*wheel or where.*C compiler") as caught:
        check(python_without_nvtx, clean)
    assert caught.value.exit_code == 2


def test_a_missing_nvtx_is_an_error_if_asked_for_and_a_warning_with_nsys(
    python_without_nvtx: Interpreter, clean: dict[str, str]
) -> None:
    python = python_without_nvtx
    assert check(python, clean) == []
    [warning] = check(python, clean, wants_nvtx=True)
    assert "will not name kvtrace's steps" in warning
    with pytest.raises(KvtraceError, match=f"--nvtx cannot work.*--python {python.python} nvtx") as caught:
        check(python, clean, needs_nvtx=True)
    assert caught.value.exit_code == 2
    install(python.python, "nvtx")
    assert check(python, clean, needs_nvtx=True, wants_nvtx=True) == []


def test_a_checkout_in_the_working_directory_does_not_count_as_installed(
    bare_python: str, clean: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KvtraceError, match="vLLM is not installed"):
        check(Interpreter(bare_python, (), "/elsewhere"), clean)


def test_nothing_is_said_of_a_python_that_does_not_answer(tmp_path: Path) -> None:
    broken = executable(tmp_path / "python3", "#!/bin/sh\nexit 7\n")
    assert check(Interpreter(str(broken)), os.environ) == []
