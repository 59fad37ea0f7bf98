from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.events import EVENTS
from kvtrace.format import layout
from kvtrace.format.manifest import Manifest
from kvtrace.launch.summary import Ending, summarize

DAMAGES = {
    "journal": lambda process: (process / layout.JOURNAL).write_bytes(b"\xff not json\n{}\n"),
    "journal is empty": lambda process: (process / layout.JOURNAL).write_bytes(b""),
    "segment": lambda process: (process / "step_schedule.00000.seg").write_bytes(b"x" * 9000),
    "segment is short": lambda process: os.truncate(process / "step_schedule.00000.seg", 5000),
    "counters": lambda process: (process / layout.COUNTERS).write_bytes(b"x"),
    "manifest": lambda process: (process.parent.parent / layout.MANIFEST).write_bytes(b"{"),
    "foreign directory": lambda process: (process.parent / "other").mkdir(),
    "foreign file": lambda process: (process.parent / "other").write_bytes(b"x"),
    "everything": lambda process: subprocess.run(["rm", "-r", str(process.parent.parent)], check=True),
}


UNNOTICED = {"segment is short", "foreign file"}
"""Damage that takes nothing from the summary: three records are counted, or the file is none of kvtrace's."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory that a process which has ended recorded in."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    Manifest(["vllm"], 1, pid=1, ended_ns=2, exit_code=0).write(run_dir)
    return run_dir


def record(run: Path, source: str) -> int:
    """Run a program with a `recorder` there; its pid."""
    program = f"""
import os, sys
from pathlib import Path
from kvtrace.capture.recorder import Recorder
from kvtrace.events import EVENTS
recorder = Recorder(Path({str(run)!r}))
def step(count):
    for _ in range(count):
        recorder.stream(EVENTS["step_schedule"])(*[1] * len(EVENTS["step_schedule"].fields))
print(os.getpid())
{source}
"""
    return int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)


def summary(run: Path, *, quiet: bool = False, code: int = 0, asked: bool = True) -> str:
    return "\n".join(summarize(Ending(run, code, 1_500_000_000, asked), quiet=quiet))


def test_processes_are_told_by_role_pid_and_rank(run: Path) -> None:
    engine = record(run, "recorder.note('role', role='engine'); step(2)")
    worker = record(
        run, "recorder.note('role', role='worker'); recorder.note('rank', dp_rank=0, tp_rank=1, pp_rank=0); step(1)"
    )
    text = summary(run)

    lines = [line.split() for line in text.splitlines()]
    assert ["engine", "pid", str(engine)] in lines
    assert ["worker", "pid", str(worker), "dp", "0", "tp", "1", "pp", "0"] in lines
    assert "2 processes" in text
    assert "3 (step_schedule 3)" in text


def test_hooks_that_are_missing_are_told_with_what_is_lost(run: Path) -> None:
    source = """
recorder.note("vllm", version="0.99")
recorder.note("hook", hook="m:A.f", state="installed", detail="")
recorder.note("hook", hook="m:A.g", state="absent", detail="evictions")
recorder.note("hook", hook="m:A.h", state="installed", detail="")
recorder.note("hook", hook="m:A.h", state="disabled", detail="TypeError: boom")
step(1)
"""
    pids = {record(run, source), record(run, source)}
    text = summary(run)

    assert "vLLM 0.99" in text
    assert "1 installed, 1 not in this vLLM" in text
    assert "m:A.g (lost: evictions)" in text
    assert text.count("m:A.h") == 1
    assert "TypeError: boom" in text
    assert all(str(pid) in text for pid in pids)
    assert "TypeError: boom" in summary(run, quiet=True)
    assert "m:A.g" not in summary(run, quiet=True)


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (
            "0.33.1",
            "vLLM 0.33.1 is newer than 0.33.0, the newest that kvtrace was checked with: recorded with the hooks",
        ),
        ("1.0.0rc1+cu130", "vLLM 1.0.0rc1+cu130 is newer than 0.33.0"),
        ("0.9.2", "vLLM 0.9.2 is older than 0.20.2"),
        ("dev", "vLLM's version is 'dev', so it is not known whether"),
        ("0.32.0+cpu", None),
        ("0.30.0", None),
        ("0.33.0", None),
    ],
)
def test_a_vllm_beyond_the_checked_ones_is_told_in_one_line(run: Path, version: str, told: str | None) -> None:
    record(run, f"recorder.note('vllm', version={version!r}); step(1)")
    lines = [line for line in summary(run).splitlines() if "checked with" in line]
    assert [line.strip().startswith(told) for line in lines] == ([True] if told else [])


def test_tiles_and_what_their_kernels_cannot_record_are_told(run: Path) -> None:
    source = """
recorder.note("device", state="recording", level="tile", name="H100", unseen={unseen!r}, untried={untried!r})
recorder.note("tiles", tiles=2_000_000, steps=300, bytes=8e6)
step(1)
"""
    record(run, source.format(unseen="", untried=""))
    record(run, source.format(unseen="cache writes are not recorded: why", untried="never ran before"))
    lines = [line.strip() for line in summary(run).splitlines() if "GPU:" in line]
    tiles = "GPU: H100, 2,000,000 tiles in 300 steps, 8 MB of 0 layers"
    assert sorted(lines) == sorted([tiles, tiles, "GPU: never ran before", "GPU: cache writes are not recorded: why"])


@pytest.mark.parametrize(
    ("timed", "in_kernel", "told"),
    [
        (["always", "outside_graphs"], None, "2 layers, with CUDA graphs of 1, by stamps around the kernels (Impl)"),
        (["always", "always"], None, "2 layers, by stamps around the kernels (Impl)"),
        (["always", "never"], None, "1 of 2 layers, by stamps around the kernels (Impl)"),
        ([None, None], "write, attention", "2 layers, observed in the kernels (Impl)"),
        ([None, "never"], "write, attention", "1 of 2 layers, observed in the kernels (Impl)"),
        (
            ["always", "outside_graphs"],
            "attention",
            "2 layers: attention observed in its kernels, writes by stamps around them, with CUDA graphs of 1 (Impl)",
        ),
    ],
)
def test_how_windows_are_observed_is_told(run: Path, timed: list, in_kernel: str | None, told: str) -> None:
    source = f"""
for index, when in enumerate({timed!r}):
    recorder.note("layer", index=index, timed=when, in_kernel={in_kernel!r} if when != "never" else None)
recorder.note("device", state="recording", level="layer", name="H100", backend="Impl")
step(1)
"""
    record(run, source)
    assert [line.strip() for line in summary(run).splitlines() if "GPU:" in line] == [
        f"GPU: H100, KV windows of {told}"
    ]


def test_drops_and_their_reason_are_problems(run: Path) -> None:
    pid = record(run, "step(3); recorder.stop('no new segment for step_schedule: No space left'); step(5)")
    text = summary(run, quiet=True)

    assert f"process {pid}" in text
    assert "No space left" in text
    assert "5 (step_schedule 5) records were dropped" in text


def test_a_torn_record_is_told(run: Path) -> None:
    record(run, "step(3)")
    (segment,) = run.glob("processes/*/*.seg")
    with segment.open("r+b") as file:
        file.seek(layout.SEGMENT_HEADER_BYTES + 3 * EVENTS["step_schedule"].struct.size)
        file.write(b"\x07")
    assert "left out: 1 " in summary(run)


def test_a_process_without_records_is_a_problem(run: Path) -> None:
    record(run, "recorder.note('role', role='engine'); recorder.open()")
    assert "recorded no event" in summary(run, quiet=True)


def test_this_live_process_is_named_as_a_leftover(run: Path) -> None:
    Recorder(run).open()
    assert f"process {os.getpid()} " in summary(run, quiet=True)


def test_a_pid_used_again_is_no_leftover(run: Path) -> None:
    """The journal's clock says that the recorded process began long before the one that has its pid."""
    Recorder(run).open()
    (journal,) = run.glob(f"processes/*/{layout.JOURNAL}")
    line, _, rest = journal.read_text().partition("\n")
    head, _, _ = line.rpartition('"realtime_ns"')
    journal.write_text(f'{head}"realtime_ns": 1, "monotonic_ns": 1, "uncertainty_ns": 0}}\n{rest}')
    assert "outlived" not in summary(run, quiet=True)


@pytest.mark.parametrize("asked", [True, False])
def test_why_nothing_was_recorded_depends_on_what_is_known(run: Path, asked: bool) -> None:
    text = summary(run, asked=asked, code=1, quiet=True)
    assert "exit code 1" in text
    assert "failed before vLLM started" in text
    assert ("a Python without kvtrace" in text) is not asked


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("quiet", [False, True])
def test_no_damage_makes_the_summary_fail(run: Path, damage: str, quiet: bool) -> None:
    record(run, "step(3)")
    (process,) = run.glob("processes/*")
    DAMAGES[damage](process)
    text = summary(run, quiet=quiet)

    assert "Traceback" not in text
    if damage not in UNNOTICED:
        assert str(run) in text


@pytest.mark.parametrize(
    ("note", "told"),
    [
        ("state='on'", "NVTX: ranges in domain kvtrace from 1 process"),
        ("state='unheard'", "NVTX: no ranges: no profiler listens"),
        ("state='absent', detail='the package is missing'", "NVTX: no ranges: the package is missing"),
    ],
)
def test_what_became_of_nvtx_is_told(run: Path, note: str, told: str) -> None:
    record(run, f"step(1); recorder.note('nvtx', {note})")
    assert told in summary(run)
