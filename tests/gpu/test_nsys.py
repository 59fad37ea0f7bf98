"""`kvtrace record --nsys` with the real Nsight Systems, and a real vLLM on a GPU.

    python -m pytest tests/gpu/test_nsys.py

Where only Nsight Compute's collector is installed its importer needs libdw: put that on LD_LIBRARY_PATH.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvtrace.errors import KvtraceError
from kvtrace.launch.nsys import find_nsys
from tests.gpu import has_gpu
from tests.gpu.test_windows import ENGINE, LAYERS, LLAMA_8B
from tests.record.processes import Output
from tests.record.test_nsys import TELLS
from tests.vllm.conftest import HERE, Recorded, ingested, kvtrace, rows, vllm_environment

MARK, RANGE, DOMAIN = 34, 59, 75  # Nsight's numbers of NVTX event types
WORKLOAD = {"sessions": 8, "turns": 2, "shared_tokens": 400, "output_tokens": 48}


def has_nsys() -> bool:
    try:
        return bool(find_nsys(os.environ))
    except KvtraceError:
        return False


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_nsys(), reason="needs Nsight Systems")]
needs_vllm = pytest.mark.skipif(not has_gpu("vllm", "nvtx"), reason="needs a CUDA device, vLLM, CuPy and nvtx")


class Profiled(NamedTuple):
    """A run recorded and profiled, ingested with its profile; and that by itself."""

    recorded: Recorded
    profile: sqlite3.Connection

    def steps(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of the recording."""
        return rows(self.recorded, sql)

    def said(self, kind: int, name: str) -> list[tuple[int, int, int]]:
        """Start, end and payload of kvtrace's ranges or marks of a name, in order."""
        return self.profile.execute(
            "SELECT e.start, e.end, e.int64Value FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId "
            "JOIN NVTX_EVENTS d ON d.eventType = ? AND d.text = 'kvtrace' AND d.domainId = e.domainId "
            "AND d.globalTid / 16777216 = e.globalTid / 16777216 "
            "WHERE e.eventType = ? AND coalesce(e.text, s.value) = ? ORDER BY e.start",
            (DOMAIN, kind, name),
        ).fetchall()


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Profiled]:
    folder = tmp_path_factory.mktemp("nsys")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(LLAMA_8B))
    config = {**WORKLOAD, "engine": {**ENGINE, "model": str(folder / "model")}, "kv_events_ports": None}
    script = [sys.executable, str(HERE / "offline.py"), json.dumps(config), str(folder / "truth.json")]
    environment = vllm_environment(VLLM_LOGGING_LEVEL="ERROR")
    arguments = ["record", "--kv-level", "layer", "--nsys", "-o", folder / "run", "--", *script]
    done = kvtrace(*arguments, env=environment, timeout=420)
    print(done.stderr[-3000:])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    manifest = json.loads((folder / "run" / "manifest.json").read_text())
    assert manifest["nsight"] == ["profile.sqlite"], done.stderr[-3000:]
    recorded = ingested(folder / "run", json.loads((folder / "truth.json").read_text()), done.stderr)
    yield Profiled(recorded, sqlite3.connect(folder / "run" / manifest["nsight"][0]))


@needs_vllm
def test_a_step_range_for_every_recorded_step(profiled: Profiled) -> None:
    recorded = profiled.steps("SELECT step, start_ns, end_ns FROM step ORDER BY step")
    ranges = profiled.said(RANGE, "step")
    assert [payload for _, _, payload in ranges] == [step for step, _, _ in recorded]
    assert len(ranges) > 60
    assert all(end is not None and end > start for start, end, _ in ranges)


@needs_vllm
def test_forward_and_sampling_ranges_have_the_recorded_steps(profiled: Profiled) -> None:
    assert [(payload,) for _, _, payload in profiled.said(RANGE, "forward")] == profiled.steps(
        "SELECT step FROM forward ORDER BY start_ns"
    )
    assert {(payload,) for _, _, payload in profiled.said(RANGE, "sample")} == set(
        profiled.steps("SELECT step FROM step WHERE scheduled_tokens > 0")
    )


@needs_vllm
def test_preemption_marks_are_the_recorded_preemptions(profiled: Profiled) -> None:
    recorded = profiled.steps("SELECT step FROM request_event WHERE op = 'preempt' ORDER BY time_ns")
    assert [(payload,) for _, _, payload in profiled.said(MARK, "preemption")] == recorded


@needs_vllm
def test_the_clock_marks_agree_with_nsights_clock(profiled: Profiled) -> None:
    """One offset, the session's start, explains all of them to some microseconds."""
    offsets = [payload - start for start, _, payload in profiled.said(MARK, "clock")]
    print("clock marks:", len(offsets), "spread of their offsets:", max(offsets) - min(offsets), "ns")
    assert len(offsets) >= 2
    assert max(offsets) - min(offsets) < 50_000


@needs_vllm
def test_kernels_of_graph_nodes_are_there(profiled: Profiled) -> None:
    kernels, of_nodes = profiled.profile.execute(
        "SELECT count(*), count(graphNodeId) FROM CUPTI_ACTIVITY_KIND_KERNEL"
    ).fetchone()
    [(steps,)] = profiled.steps("SELECT count(*) FROM step WHERE scheduled_tokens > 0")
    print("kernels:", kernels, "of graph nodes:", of_nodes, "steps:", steps)
    assert of_nodes > 0
    assert kernels > steps * LAYERS * 2


@needs_vllm
def test_kernels_are_launched_inside_step_ranges(profiled: Profiled) -> None:
    """By (pid, correlation id) and the launching call's thread and time, as ingest joins them."""
    inside, outside = profiled.profile.execute(
        """
        WITH steps AS (
            SELECT e.start, e.end, e.globalTid FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId
            JOIN NVTX_EVENTS d ON d.eventType = 75 AND d.text = 'kvtrace' AND d.domainId = e.domainId
                AND d.globalTid / 16777216 = e.globalTid / 16777216
            WHERE e.eventType = 59 AND coalesce(e.text, s.value) = 'step'
        ), bounds AS (SELECT min(start) AS first, max(end) AS last FROM steps),
        launches AS (
            SELECT r.start, r.globalTid, count(*) AS kernels
            FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
                ON r.correlationId = k.correlationId AND r.globalTid / 16777216 = k.globalPid / 16777216, bounds
            WHERE r.start BETWEEN first AND last AND r.eventClass IN (0, 1)
            GROUP BY r.start, r.globalTid
        )
        SELECT coalesce(sum(kernels) FILTER (WHERE hit), 0), coalesce(sum(kernels) FILTER (WHERE NOT hit), 0)
        FROM (
            SELECT kernels, EXISTS (
                SELECT 1 FROM steps s WHERE s.globalTid = l.globalTid AND l.start BETWEEN s.start AND s.end
            ) AS hit FROM launches l
        )
        """
    ).fetchone()
    print("kernels launched between the first and the last step: inside a step", inside, "outside", outside)
    assert inside / (inside + outside) >= 0.999


@needs_vllm
def test_every_steps_windows_lie_inside_its_kernels(profiled: Profiled) -> None:
    """By Nsight's own times of the model's kernels."""
    [told] = profiled.recorded.trace.sql(
        """
        WITH kernels AS (
            SELECT engine_id, step, min(start_ns) AS first, max(end_ns) AS last
            FROM gpu_kernel WHERE category <> 'kvtrace' AND step IS NOT NULL GROUP BY ALL
        )
        SELECT count(*) AS windows, count(DISTINCT step) AS steps, count_if(first IS NULL) AS without,
            count_if(start_ns < first OR end_ns > last) AS outside, min(start_ns - first) AS after_first_ns,
            min(last - end_ns) AS before_last_ns
        FROM kv_window LEFT JOIN kernels USING (engine_id, step)
        """,
        format="arrow",
    ).to_pylist()
    print(told)
    [(steps,)] = profiled.steps("SELECT count(*) FROM step WHERE scheduled_tokens > 0")
    assert (told["windows"], told["steps"]) == (2 * LAYERS * steps, steps)
    assert (told["without"], told["outside"]) == (0, 0)


@needs_vllm
def test_observed_windows_enclose_their_kernels(profiled: Profiled) -> None:
    """To 3 us, for two clocks are compared: the profile is laid on the windows' centres, not on their ends."""
    [told] = profiled.recorded.trace.sql(
        """
        SELECT count(*) AS windows, count(k.kernels) AS with_kernels,
            min(k.start_delta_ns) AS start_delta_ns, min(k.end_delta_ns) AS end_delta_ns
        FROM kv_window w LEFT JOIN kv_window_kernel k USING (process_id, engine_id, step, layer, kind)
        WHERE w.observed
        """,
        format="arrow",
    ).to_pylist()
    print(told)
    assert told["with_kernels"] == told["windows"] > 1000
    assert min(told["start_delta_ns"], told["end_delta_ns"]) > -3000


@needs_vllm
def test_nothing_failed(profiled: Profiled) -> None:
    assert profiled.steps("SELECT * FROM hook WHERE state = 'disabled'") == []
    assert "NVTX: ranges in domain kvtrace from 1 process" in profiled.recorded.record_stderr


def record(folder: Path, *command: str, **options: Any) -> subprocess.Popen[bytes]:
    arguments = ["record", "--nsys", "--no-preflight", "-o", str(folder / "run"), *command]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-m", "kvtrace", *arguments], start_new_session=True, **pipes, **options)


def nsight(folder: Path) -> Any:
    return json.loads((folder / "run" / "manifest.json").read_text()).get("nsight")


@pytest.mark.parametrize(("command", "code"), [("echo out; exit 7", 7), ("echo out; kill -9 $$", 137)])
def test_streams_and_exit_code_are_the_commands(tmp_path: Path, command: str, code: int) -> None:
    process = record(tmp_path, "sh", "-c", command)
    out, err = process.communicate(timeout=120)
    assert (out, process.returncode) == (b"out\n", code), err
    assert nsight(tmp_path) == ["profile.sqlite"], err


def test_a_command_that_nsys_leaves_running_is_waited_for(tmp_path: Path) -> None:
    process = record(tmp_path, "--nsys-args", "--duration=1 --kill=none", "sh", "-c", "sleep 5; echo done; exit 3")
    out, err = process.communicate(timeout=120)
    assert out == b"done\n", err
    assert b"its exit code is not known" in err
    assert nsight(tmp_path) == ["profile.sqlite"], err


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_a_signal_reaches_the_command_once_and_the_report_is_made(tmp_path: Path, name: str) -> None:
    program = tmp_path / "tells.py"
    program.write_text(TELLS.replace("\n    ", "\n"))
    process = record(tmp_path, sys.executable, str(program), bufsize=0)
    assert process.stdout is not None
    assert process.stdin is not None
    said = Output(process.stdout.fileno())
    said.read_until(rb"ready\.")
    os.killpg(process.pid, signal.Signals[name])
    said.read_until(f"<{name}>".encode())
    process.stdin.close()
    assert said.read_until(b"end") == f"ready.<{name}>end".encode()
    assert process.wait(120) == 5
    assert nsight(tmp_path) == ["profile.sqlite"]
