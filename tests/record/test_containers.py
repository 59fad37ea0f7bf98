"""A command that starts its engine in a container: namespaces of its own, an empty environment, a shared directory."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kvtrace.format.processes import is_here
from kvtrace.format.reader import open_recording
from tests.record.processes import Engine, Run

NAMESPACES = ["unshare", "--map-root-user", "--pid", "--mount", "--fork", "--mount-proc"]

needs_namespaces = pytest.mark.skipif(
    not shutil.which("unshare")
    or subprocess.run([*NAMESPACES, "true"], check=False, capture_output=True).returncode != 0,
    reason="this system lets nobody make namespaces",
)


@needs_namespaces
def test_an_engine_in_a_container_is_recorded_through_the_shared_directory(
    record: Run, engine: Engine, tmp_path: Path
) -> None:
    # GIVEN a container that has the host's name, sees its own pids, and of the environment only what is forwarded
    (tmp_path / "shared").mkdir()
    python = " ".join(f"'{word}'" for word in engine("step(3)"))
    inside = f'env -i KVTRACE_RUN_DIR={tmp_path}/shared PYTHONPATH="$PYTHONPATH" {python}'
    start = f'mount --bind "$KVTRACE_RUN_DIR" {tmp_path}/shared && exec {inside}'

    # WHEN it is recorded; its first process has pid 1, as some process of the host has
    done = record("-o", "run", *NAMESPACES, "sh", "-c", start)

    # THEN the recording has it, and nobody takes the host's process for it
    assert done.returncode == 0, done.stderr
    said = done.stderr.decode()
    assert "recorded 1 process of vLLM" in said
    assert "step_schedule 3" in said
    assert "outlived" not in said
    [process] = open_recording(tmp_path / "run").processes
    assert process.pid == 1
    assert not is_here(process.facts)
    assert not list((tmp_path / "shared").iterdir())


@needs_namespaces
def test_retention_does_not_take_an_engine_in_a_container_for_dead(record: Run, engine: Engine) -> None:
    # GIVEN an engine whose pid is none of the host's
    source = "import time; step(1); time.sleep(4); step(1)"
    python = " ".join(f"'{word}'" for word in engine(source))
    pid = int(Path("/proc/sys/kernel/pid_max").read_text()) - 100
    start = f"echo {pid} > /proc/sys/kernel/ns_last_pid; {python}; true"

    # WHEN it writes nothing for longer than records are kept
    done = record("--keep-last", "1s", "-o", "run", *NAMESPACES, "sh", "-c", start)

    # THEN the file that it goes on with is there
    assert done.returncode == 0, done.stderr
    said = done.stderr.decode()
    assert re.search(rf"pid {pid + 1}\n", said)
    assert "step_schedule 2" in said
