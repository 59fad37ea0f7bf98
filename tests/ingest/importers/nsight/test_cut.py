"""`examples/recordings/cut_profile.py`: an export that can be given away, and tells the same of a recording's steps."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from .conftest import PID, ROOT, SmallExport, global_tid, ingest_export

SECRET = "OPENAI_API_KEY=sk-12345"
RECORDINGS = ROOT / "examples" / "recordings"


@pytest.fixture
def whole(export: SmallExport) -> SmallExport:
    """Two kernels and a copy of step 4, a kernel of warm-up, another process, and an environment in three places."""
    export.epoch().version("2025.3.2.0", "3.20.3").kvtrace_domain().range("step", 1_000, 2_000, 4)
    export.call(100, 1).kernel(110, 190, 1, "void warm_up(int)")
    export.call(1_100, 2).kernel(1_120, 1_190, 2, "void flash::flash_fwd_kernel<int>(T1)", registersPerThread=7)
    export.call(1_200, 3).kernel(1_220, 1_290, 3, "reshape_and_cache_flash_kernel")
    copy = {"start": 1_310, "end": 1_350, "deviceId": 0, "contextId": 1, "streamId": 9, "correlationId": 5}
    copy |= {"globalPid": global_tid(0), "bytes": 4096, "copyKind": 2, "srcKind": 2, "dstKind": 0}
    export.call(1_300, 5).rows("CUPTI_ACTIVITY_KIND_MEMCPY", [copy])
    processes = [(PID, "VLLM::EngineCore"), (PID + 1, "a-neighbour")]
    export.rows("PROCESSES", [{"globalPid": global_tid(0, pid), "pid": pid, "name": name} for pid, name in processes])
    export.rows(
        "ThreadNames",
        [{"globalTid": global_tid(pid=pid), "nameId": export.string(f"thread of {pid}")} for pid, _ in processes],
    )
    export.rows("META_DATA_EXPORT", [{"name": "EXPORT_HOST", "value": SECRET}])
    export.rows("META_DATA_CAPTURE", [{"name": "ENVIRONMENT", "value": SECRET}])
    export.rows("DIAGNOSTIC_EVENT", [{"timestamp": 1, "textId": export.string(SECRET)}])
    return export


def cut(source: Path, target: Path) -> Path:
    subprocess.run([sys.executable, RECORDINGS / "cut_profile.py", source, target], check=True, cwd=ROOT)
    return target


def test_steps_stay_as_they_are_and_private_facts_go(whole: SmallExport, tmp_path: Path) -> None:
    path = cut(whole.path, tmp_path / "cut.sqlite")

    assert SECRET.encode() in whole.path.read_bytes()
    assert all(word not in path.read_bytes() for word in (b"sk-12345", b"a-neighbour", b"registersPerThread"))
    before, after = (ingest_export(each, tmp_path / f"{each.stem}.duckdb") for each in (whole.path, path))
    of_steps = """SELECT name, step, start_ns, end_ns, category, attribution FROM gpu_kernel
        WHERE step IS NOT NULL ORDER BY start_ns"""
    assert len(after.ask(of_steps)) == 2
    assert after.ask(of_steps) == before.ask(of_steps)
    copies = "SELECT start_ns, bytes, direction, step FROM gpu_copy"
    assert after.ask(copies) == before.ask(copies) != []
    assert after.ask("SELECT count(*) FROM gpu_kernel") == [(2,)]
    assert after.ask("SELECT pid, name FROM profiled_process") == [(PID, "VLLM::EngineCore")]
    assert after.ask("SELECT name FROM profiled_thread") == [(f"thread of {PID}",)]
    assert after.ask("SELECT version FROM source") == [("2025.3.2.0",)]


def test_shipped_profiles_are_cut(tmp_path: Path) -> None:
    shipped = 0
    for archive in RECORDINGS.glob("*.tar.xz"):
        with tarfile.open(archive) as file:
            for member in file.getmembers():
                if member.name.endswith(".sqlite"):
                    file.extract(member, tmp_path, filter="data")
                    with sqlite3.connect(tmp_path / member.name) as profile:
                        strings = [text for (text,) in profile.execute("SELECT value FROM StringIds")]
                    assert not [text for text in strings if "\0" in text or "PATH=" in text]
                    shipped += 1
    assert shipped
