"""`make explore` on an archive that holds profiles beside the recording."""

from __future__ import annotations

import gzip
import importlib.util
import json
import tarfile
from pathlib import Path
from types import ModuleType

import duckdb

from kvtrace.queries import Trace
from tests.ingest.importers.nsight.conftest import SmallExport, global_tid

from .console import ROOT

NAME = "agents-clock"
STEPS = range(100, 140)
US = 1000


def load_explore() -> ModuleType:
    """Import examples/explore.py, which is no package's."""
    spec = importlib.util.spec_from_file_location("explore", ROOT / "examples" / "explore.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recorded_passes(trace: Path) -> tuple[int, list[tuple[int, int]]]:
    """Return the worker's pid, and begin and end (UNIX ns) of the forward passes of STEPS."""
    sql = """SELECT p.pid, f.start_ns, f.end_ns FROM forward f JOIN process p USING (process_id)
        WHERE step BETWEEN ? AND ? ORDER BY step"""
    with duckdb.connect(str(trace), read_only=True) as connection:
        rows = connection.execute(sql, [STEPS[0], STEPS[-1]]).fetchall()
    return rows[0][0], [(start, end) for _, start, end in rows]


def write_export(path: Path, pid: int, passes: list[tuple[int, int]]) -> None:
    """Write an export of Nsight Systems: a kernel a forward pass, launched in it."""
    epoch = passes[0][0] - 1_000_000
    export = SmallExport(path).epoch(epoch)
    for number, (start, end) in enumerate(passes, 1):
        at, until = start - epoch + US, end - epoch - US
        export.call(at, number, globalTid=global_tid(pid, pid))
        export.kernel(at + US, until, number, "void flash::flash_fwd_kernel<int>(T1)", globalPid=global_tid(0, pid))
    export.db.close()


def write_chrome_trace(path: Path, pid: int, passes: list[tuple[int, int]]) -> None:
    """Write a trace of PyTorch's profiler with the same kernels."""
    base = passes[0][0]
    events = []
    for number, (start, end) in enumerate(passes, 1):
        at, common = (start - base) / US + 1, {"ph": "X", "args": {"device": 0, "stream": 7, "correlation": number}}
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": pid, "tid": pid, "ts": at, "dur": 1}
        kernel = {"cat": "kernel", "name": "void flash::flash_fwd_kernel<int>(T1)", "pid": 0, "tid": 7}
        events += [common | call, common | kernel | {"ts": at + 2, "dur": (end - start) / US - 4}]
    text = json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": base, "traceEvents": events})
    path.write_bytes(gzip.compress(text.encode()))


def test_profiles_beside_a_recording_are_explored_too(explored: Path, tmp_path: Path) -> None:
    with tarfile.open(ROOT / "examples" / "recordings" / f"{NAME}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    pid, passes = recorded_passes(explored / NAME / NAME / "trace.duckdb")  # a trace of the same recording
    write_export(tmp_path / NAME / "profile.sqlite", pid, passes)
    write_chrome_trace(tmp_path / NAME / "worker.pt.trace.json.gz", pid, passes)
    with tarfile.open(tmp_path / "packed.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / NAME, NAME)

    before = tmp_path / "explored" / NAME / "processes" / "of-an-earlier-archive"
    before.mkdir(parents=True)

    load_explore().build(tmp_path / "packed.tar.xz", tmp_path / "explored")

    assert not before.exists()

    with Trace(tmp_path / "explored" / NAME / "trace.duckdb") as trace:
        sql = "SELECT kind, list(step ORDER BY step) FROM gpu_kernel JOIN source USING (source_id) GROUP BY kind"
        found = dict(trace.sql(sql, format="relation").fetchall())
    assert found == {"nsight": [*STEPS], "torch": [*STEPS]}
    assert "flash_fwd_kernel" in (tmp_path / "explored" / "report" / "report.html").read_text()
    assert (tmp_path / "explored" / "page.html").stat().st_size > 0
