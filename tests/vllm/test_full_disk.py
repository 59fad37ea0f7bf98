"""A disk that fills stops the recording, never the engine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.conftest import HERE, kvtrace, vllm_environment


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_the_engine_goes_on_and_every_lost_record_is_counted(
    small_disk: Path, warm_python: list[str], tmp_path: Path
) -> None:
    # GIVEN a disk with room for some of the streams' first segments
    run, demo = small_disk / "run", HERE.parent.parent / "examples" / "demo.py"
    # WHEN the demo is recorded there
    done = kvtrace("record", "-o", run, "--", *warm_python, demo, env=vllm_environment(), timeout=300)
    # THEN it ends as ever, the summary says what stopped and the trace holds what was written and what was not
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("prompt tokens") == 4
    assert "No space left on device" in done.stderr
    there = kvtrace("ingest", run)
    assert there.returncode == 1
    assert "No space left on device" in there.stderr
    assert there.stderr.endswith("choose another place for the trace with -o")
    assert kvtrace("ingest", run, "-o", tmp_path / "t.duckdb").returncode == 0
    import kvtrace as package

    with package.open(tmp_path / "t.duckdb") as trace:
        streams = trace.sql("SELECT event, records, dropped FROM stream", format="arrow").to_pylist()
    total = {stream["event"]: stream["records"] + stream["dropped"] for stream in streams}
    assert total["request_queued"] == total["request_arrival"] == 32
    assert total["step_schedule"] == total["step_update"] == total["forward"] > 100
    assert any(stream["dropped"] for stream in streams)
