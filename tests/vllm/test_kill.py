"""`kill -9` of a recording engine, at random moments: what was written is there. `make faults` kills a thousand."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

from tests.vllm.conftest import ENGINE, HERE, kvtrace, vllm_environment

KILLS = 5


def test_kills_lose_nothing_that_was_written(warm_python: list[str], tmp_path: Path) -> None:
    import kvtrace as package

    environment = vllm_environment(
        KVTRACE_COUNT_WRITES="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_PLUGINS="", VLLM_LOGGING_LEVEL="ERROR"
    )
    victims = subprocess.Popen(
        [*warm_python, str(HERE / "victims.py"), json.dumps(ENGINE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "log").open("wb"),
        text=True,
        env=environment,
    )
    assert victims.stdin is not None
    assert victims.stdout is not None
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    total = 0
    try:
        assert victims.stdout.readline() == "ready\n"
        for number in range(KILLS):
            run = tmp_path / f"run{number}"
            victims.stdin.write(f"{run}\n")
            victims.stdin.flush()
            up, pid = victims.stdout.readline().split()
            assert up == "up", (tmp_path / "log").read_text()[-3000:]
            time.sleep(moments.uniform(0, 1.0))  # the random moment is the point, nothing is waited for
            os.kill(int(pid), signal.SIGKILL)
            assert victims.stdout.readline() == f"ended {signal.SIGKILL}\n"
            total += check(run, package.open)
    finally:
        victims.kill()
        victims.wait()
    print(f"{KILLS} kills, {total} records, none lost")


def check(run: Path, open_trace: object) -> int:
    """Ingest and compare with what the process itself counted; records found."""
    from kvtrace.format.reader import open_recording

    done = kvtrace("ingest", run)
    assert done.returncode == 0, done.stderr
    [process] = open_recording(run).processes
    written = process.written()
    with open_trace(run / "trace.duckdb") as trace:  # type: ignore[operator]
        found = dict(
            zip(*trace.sql("SELECT event, records FROM stream", format="arrow").to_pydict().values(), strict=True)
        )
    assert found["step_schedule"] > 0
    for event, count in written.items():
        # One record may be in the log whose count the process did not live to raise.
        assert count <= found.get(event, 0) <= count + 1, event
    return sum(found.values())
