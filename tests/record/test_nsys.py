"""`kvtrace record --nsys`, with a stand-in that behaves as nsys does at its command line (see nsys_standin.py)."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvtrace.errors import KvtraceError
from kvtrace.launch.nsys import Nsys, find_nsys
from tests.record.processes import DEADLINE_S, Engine, Output, Run, Script, Start
from tests.record.test_terminal import INTERRUPTIBLE, STATUS, Open, interrupt_twice, terminal  # noqa: F401

STANDIN = Path(__file__).with_name("nsys_standin.py")
IMPORTER = """#!/bin/sh
[ "$1" = -i ] && [ "$3" = -o ] && cat "$2" >"$4" && echo 'Processing [====100%]'
"""
IMPORTER_WITHOUT_LIBRARY = """#!/bin/sh
echo "$0: error while loading shared libraries: libdw.so.1: cannot open shared object file" >&2
exit 127
"""


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The folder that Nsight Compute keeps its collector in, with the stand-in as nsys."""
    folder = tmp_path / "nsight" / "host"
    start = f'#!/bin/sh\nexec "{sys.executable}" "{STANDIN}" "$@"\n'
    executable(folder / "target-linux-x64" / "nsys", start)
    return folder


@pytest.fixture
def environment(environment: dict[str, str], host: Path, tmp_path: Path) -> dict[str, str]:
    named = {"KVTRACE_NSYS": str(host / "target-linux-x64"), "STANDIN_SAW": str(tmp_path / "saw.json")}
    return {**environment, **named}


def manifest(tmp_path: Path) -> dict[str, Any]:
    return json.loads((tmp_path / "run" / "manifest.json").read_text())


def saw(tmp_path: Path) -> dict[str, Any]:
    return json.loads((tmp_path / "saw.json").read_text())


def test_the_command_runs_under_nsys_and_the_export_is_named(record: Run, engine: Engine, tmp_path: Path) -> None:
    result = record("--nsys", "-o", "run", *engine("step(3)"))

    assert result.returncode == 0, result.stderr
    assert saw(tmp_path)["options"] == {
        "--trace": "cuda,nvtx",
        "--cuda-graph-trace": "node",
        "--cuda-flush-interval": "200",
        "--trace-fork-before-exec": "true",
        "--sample": "none",
        "--cpuctxsw": "none",
        "--force-overwrite": "true",
        "--output": str(tmp_path / "run" / "profile"),
    }
    assert saw(tmp_path)["environment"]["KVTRACE_RUN_DIR"] == str(tmp_path / "run")
    assert saw(tmp_path)["environment"]["KVTRACE_NVTX"] == "1"
    assert manifest(tmp_path)["nsight"] == ["profile.sqlite"]
    assert manifest(tmp_path)["command"][0] == sys.executable
    tables = sqlite3.connect(tmp_path / "run" / "profile.sqlite").execute("SELECT name FROM sqlite_master").fetchall()
    assert tables == [("StringIds",)]
    summary = result.stderr.decode()
    assert "step_schedule 3" in summary
    assert "Nsight Systems: run/profile.sqlite" in summary
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {"manifest.json", "processes", "nsys.log", "profile.nsys-rep", "profile.sqlite"}


def test_another_recording_may_replace_it(record: Run, engine: Engine) -> None:
    command = ["--nsys", "-o", "run", *engine("step(1)")]
    assert record(*command).returncode == 0
    assert record("--force", *command).returncode == 0


def test_the_users_options_take_the_place_of_kvtraces(record: Run, tmp_path: Path) -> None:
    result = record("--nsys-args", "-tcuda,nvtx,osrt --sample=process-tree --delay 0", "-o", "run", "true")
    assert result.returncode == 0, result.stderr
    options = saw(tmp_path)["options"]
    assert (options["--trace"], options["--sample"], options["--delay"]) == ("cuda,nvtx,osrt", "process-tree", "0")
    assert options["--cuda-graph-trace"] == "node"


@pytest.mark.parametrize("options", ["-o elsewhere", "-oelsewhere", "--output=elsewhere"])
def test_the_reports_place_is_the_run_directory(record: Run, tmp_path: Path, options: str) -> None:
    result = record("--nsys", "--nsys-args", options, "-o", "run", "touch", "started")
    assert result.returncode == 2
    assert b"run directory" in result.stderr
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "started").exists()


def test_the_commands_streams_are_its_own(record: Run, tmp_path: Path) -> None:
    streams = "cat; echo out; echo err >&2; ls /proc/$$/fd"
    result = record("--nsys", "--quiet", "-o", "run", "sh", "-c", streams, stdin=None, input=b"in\n")
    assert result.stdout.startswith(b"in\nout\n")
    assert result.stdout.split()[2:5] == [b"0", b"1", b"2"]
    assert not {b"7", b"8", b"9"} & set(result.stdout.split())
    assert result.stderr.startswith(b"err\n")
    assert b"Collecting" not in result.stdout + result.stderr
    assert "Collecting data" in (tmp_path / "run" / "nsys.log").read_text()


@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_the_exit_code_is_the_commands(record: Run, tmp_path: Path, command: str, code: int) -> None:
    assert record("--nsys", "-o", "run", "sh", "-c", command).returncode == code
    assert manifest(tmp_path)["exit_code"] == code
    assert manifest(tmp_path)["nsight"] == ["profile.sqlite"]


@pytest.mark.parametrize("folder", ["host-linux-x64", "linux-desktop-glibc_2_11_3-x64"])
def test_an_unfinished_report_is_finished_by_the_importer_beside(
    record: Run, environment: dict[str, str], host: Path, tmp_path: Path, folder: str
) -> None:
    executable(host / folder / "QdstrmImporter", IMPORTER)
    result = record("--nsys", "-o", "run", "true", env={**environment, "STANDIN_LEAVES": "collected"})
    assert result.returncode == 0
    assert manifest(tmp_path)["nsight"] == ["profile.sqlite"]
    assert (tmp_path / "run" / "profile.nsys-rep").read_text() == "stand-in"
    assert not (tmp_path / "run" / "profile.qdstrm").exists()


def test_a_library_the_importer_lacks_is_named_with_the_way_on(
    record: Run, environment: dict[str, str], host: Path, tmp_path: Path
) -> None:
    executable(host / "linux-desktop-glibc_2_11_3-x64" / "QdstrmImporter", IMPORTER_WITHOUT_LIBRARY)
    result = record("--nsys", "-o", "run", "sh", "-c", "exit 3", env={**environment, "STANDIN_LEAVES": "collected"})
    assert result.returncode == 3
    said = result.stderr.decode()
    assert "needs libdw.so.1: install it (package libdw1 " in said
    for part in (
        "QdstrmImporter -i run/profile.qdstrm -o run/profile.nsys-rep",
        "export --type sqlite",
        "kvtrace ingest run --nsight run/profile.sqlite",
    ):
        assert part in said
    assert (tmp_path / "run" / "profile.qdstrm").exists()
    assert "nsight" not in manifest(tmp_path)


def test_no_importer_is_one_line_with_the_way_on(record: Run, environment: dict[str, str]) -> None:
    result = record("--nsys", "--quiet", "-o", "run", "true", env={**environment, "STANDIN_LEAVES": "collected"})
    assert result.returncode == 0
    [line] = [line for line in result.stderr.decode().splitlines() if "QdstrmImporter" in line]
    assert "no QdstrmImporter is beside" in line
    assert "By hand: QdstrmImporter -i run/profile.qdstrm" in line


def test_no_report_at_all_is_said(record: Run, environment: dict[str, str], tmp_path: Path) -> None:
    result = record("--nsys", "-o", "run", "true", env={**environment, "STANDIN_LEAVES": "nothing"})
    assert result.returncode == 0
    assert b"nsys left no report in run: Collecting data" in result.stderr
    assert "nsight" not in manifest(tmp_path)


def test_a_failed_export_leaves_no_half_and_says_how_to_go_on(
    record: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    result = record("--nsys", "-o", "run", "sh", "-c", "exit 4", env={**environment, "STANDIN_EXPORT": "fails"})
    assert result.returncode == 4
    assert b"nsys failed with exit code 1" in result.stderr
    assert b"export --type sqlite" in result.stderr
    assert not (tmp_path / "run" / "profile.sqlite").exists()
    assert (tmp_path / "run" / "profile.nsys-rep").exists()
    assert "nsight" not in manifest(tmp_path)


def test_an_nsys_that_refuses_its_options_is_an_error_of_kvtraces(record: Run, tmp_path: Path) -> None:
    result = record("--nsys", "--nsys-args", "--bogus=1", "-o", "run", "touch", "started")
    assert result.returncode == 2
    told, error = result.stderr.decode().splitlines()
    assert told.startswith("kvtrace: recording to ")
    assert "did not start the command: unrecognised option '--bogus'" in error
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "run").exists()


def test_a_command_that_nsys_leaves_running_is_recorded_to_its_end(
    start: Start, engine: Engine, tmp_path: Path
) -> None:
    source = "step(1); print('ready', flush=True); sys.stdin.readline(); step(2); print('done'); sys.exit(3)"
    process = start("--nsys-args", "--duration=0.1 --kill=none", "-o", "run", *engine(source))
    said = Output(process.stdout.fileno())
    said.read_until(rb"ready")
    log = tmp_path / "run" / "nsys.log"
    wait_until(lambda: "Generated" in log.read_text())
    process.stdin.write(b"go on\n")
    assert said.read_until(b"done")
    summary = process.stderr.read().decode()
    assert process.wait() == 0
    assert "the command ended after nsys, so its exit code is not known" in summary
    assert "step_schedule 3" in summary
    assert manifest(tmp_path)["nsight"] == ["profile.sqlite"]
    assert "exit_code" not in manifest(tmp_path)
    assert "ended_ns" in manifest(tmp_path)


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


TELLS = """
    import os, signal, sys

    def tell(number, frame):
        os.write(1, f"<{signal.Signals(number).name}>".encode())

    for number in (1, 2, 3, 10, 12, 15):
        signal.signal(number, tell)
    os.write(1, b"ready.")
    os.write(1, b"end" + sys.stdin.read().encode())
    sys.exit(5)
"""


@pytest.mark.parametrize("to_group", [False, True], ids=["kvtrace", "group"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGQUIT"])
def test_a_signal_reaches_the_command_once_and_the_report_is_made(
    start: Start, script: Script, tmp_path: Path, name: str, to_group: bool
) -> None:
    """Those that would end nsys too: the command gets them past it."""
    process = start("--nsys", "--no-preflight", "-o", "run", sys.executable, script(TELLS))
    said = Output(process.stdout.fileno())
    said.read_until(rb"ready\.")
    number = signal.Signals[name]
    (os.killpg if to_group else os.kill)(process.pid, number)
    said.read_until(f"<{name}>".encode())
    process.send_signal(signal.SIGUSR2)
    said.read_until(b"<SIGUSR2>")
    process.stdin.close()
    assert said.read_until(b"end") == f"ready.<{name}><SIGUSR2>end".encode()
    assert process.wait() == 5
    assert manifest(tmp_path)["nsight"] == ["profile.sqlite"]


def test_ctrl_c_reaches_the_command_once_and_the_terminal_shows_nothing_of_nsys(
    terminal: Open,  # noqa: F811
    script: Script,
    tmp_path: Path,
) -> None:
    window = terminal("--nsys", "--no-preflight", "-o", "run", sys.executable, script(INTERRUPTIBLE))
    window.read_until(rb"pid \d+\.")
    window.read_until(STATUS.pattern)
    code, shown = interrupt_twice(window)

    assert code == 7
    assert b"<interrupt 3>" not in shown
    assert b"Collecting" not in shown
    assert b"Generated" not in shown
    assert manifest(tmp_path)["nsight"] == ["profile.sqlite"]


def test_an_nsys_that_is_missing_is_one_line_before_anything_starts(
    record: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    hidden = {name: value for name, value in environment.items() if name != "KVTRACE_NSYS"}
    if any(Path(folder, "nsys").exists() for folder in hidden["PATH"].split(":")) or Path("/opt/nvidia").exists():
        pytest.skip("this machine has an nsys")
    result = record("--nsys", "-o", "run", "touch", "started", env=hidden)
    assert result.returncode == 2
    assert result.stderr.decode().count("\n") == 1
    assert b"nsys profile --trace=cuda,nvtx --cuda-graph-trace=node" in result.stderr
    assert b"KVTRACE_NSYS" in result.stderr
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "run").exists()


def test_a_wrong_name_of_nsys_is_said(record: Run, environment: dict[str, str]) -> None:
    result = record("--nsys", "-o", "run", "true", env={**environment, "KVTRACE_NSYS": "/no/such"})
    assert result.returncode == 2
    assert b"KVTRACE_NSYS=/no/such is not nsys" in result.stderr


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("opt/nvidia/nsight-systems/2024.6.2/bin/nsys", "opt/nvidia/nsight-systems/2024.10.1/bin/nsys"),
        ("usr/local/cuda-12.9/bin/nsys", "usr/local/cuda-13.0/bin/nsys"),
        (
            "opt/nvidia/nsight-compute/2025.3.1/host/target-linux-{}/nsys",
            "opt/nvidia/nsight-systems-cli/2025.1.1/target-linux-{}/nsys",
        ),
        (
            "usr/local/cuda-13.0/nsight-compute-2025.3.1/host/target-linux-{}/nsys",
            "opt/nvidia/nsight-compute/2025.3.1/host/target-linux-{}/nsys",
        ),
    ],
)
def test_the_newest_is_found_where_packages_put_it(tmp_path: Path, older: str, newer: str) -> None:
    machine = {"x86_64": "x64", "aarch64": "sbsa-armv8"}[os.uname().machine]
    first = executable(tmp_path / older.format(machine), "")
    assert find_nsys({"PATH": ""}, root=tmp_path).program == first
    second = executable(tmp_path / newer.format(machine), "")
    assert find_nsys({"PATH": ""}, root=tmp_path).program == second


def test_path_and_cuda_home_come_first(tmp_path: Path) -> None:
    executable(tmp_path / "usr" / "local" / "cuda-13.0" / "bin" / "nsys", "")
    home = executable(tmp_path / "cuda" / "bin" / "nsys", "")
    environment = {"PATH": "", "CUDA_HOME": str(tmp_path / "cuda")}
    assert find_nsys(environment, root=tmp_path).program == home
    on_path = executable(tmp_path / "own" / "nsys", "")
    assert find_nsys({**environment, "PATH": str(on_path.parent)}, root=tmp_path).program == on_path


def test_options_that_are_no_shell_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KvtraceError, match="split as shell words"):
        find_nsys({"PATH": ""}, "--trace 'cuda", root=tmp_path)


@pytest.mark.parametrize("nsys", ["target-linux-x64/nsys", "bin/nsys"])
def test_the_importer_of_a_full_installation_is_found(tmp_path: Path, nsys: str) -> None:
    importer = executable(tmp_path / "host-linux-x64" / "QdstrmImporter", "")
    assert Nsys(executable(tmp_path / nsys, "")).importer == importer
