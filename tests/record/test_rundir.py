from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvtrace.errors import KvtraceError
from kvtrace.format.manifest import Manifest, read_facts
from kvtrace.launch.rundir import default_run_dir, make_run_dir


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A recording that ended, with the trace made of it."""
    run = tmp_path / "old"
    process = run / "processes" / "host-1-2"
    process.mkdir(parents=True)
    Manifest(["vllm"], 1, pid=1, ended_ns=2, exit_code=0).write(run)
    for path in (process / "journal.jsonl", process / "block_event.00000.seg", run / "trace.duckdb"):
        path.write_text("{}")
    return run


def test_default_names_never_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = []
    for _ in range(3):
        path = default_run_dir()
        path.mkdir()
        names.append(path.name)
    assert len(set(names)) == 3
    assert all(name.startswith("kvtrace-run-") for name in names)


def left_in(path: Path) -> list[tuple[str, int]]:
    """Names and sizes: the empty manifest is what a new recording takes a directory by."""
    return [(entry.name, entry.stat().st_size) for entry in path.iterdir()]


def test_of_recordings_that_begin_at_once_in_a_directory_one_gets_it(tmp_path: Path) -> None:
    for run, exists in ((tmp_path / "new", False), (tmp_path / "empty", True)):
        if exists:
            run.mkdir()
        begin = threading.Barrier(8)

        def attempt(run: Path = run, begin: threading.Barrier = begin) -> bool:
            begin.wait()
            try:
                make_run_dir(run, force=False)
            except KvtraceError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sum(attempted.result() for attempted in [pool.submit(attempt) for _ in range(8)]) == 1


def test_force_refuses_a_recording_that_only_begins(tmp_path: Path) -> None:
    """It has no command yet, whose process could be looked for."""
    run = tmp_path / "run"
    make_run_dir(run, force=False)
    with pytest.raises(KvtraceError, match="does not look like a run directory"):
        make_run_dir(run, force=True)
    Manifest(command=["x"], started_ns=1, pid=os.getpid()).write(run)
    with pytest.raises(KvtraceError, match="in use"):
        make_run_dir(run, force=True)


def test_an_empty_directory_is_used(tmp_path: Path) -> None:
    assert not make_run_dir(tmp_path, force=False)


def test_missing_parents_are_made(tmp_path: Path) -> None:
    assert make_run_dir(tmp_path / "a" / "b", force=False)


def test_an_old_recording_is_refused_without_force(old: Path) -> None:
    with pytest.raises(KvtraceError, match="--force"):
        make_run_dir(old, force=False)
    assert read_facts(old)


def test_force_replaces_an_old_recording(old: Path) -> None:
    make_run_dir(old, force=True)
    assert left_in(old) == [("manifest.json", 0)]


def test_force_replaces_a_recording_whose_manifest_is_lost(old: Path) -> None:
    (old / "manifest.json").unlink()
    make_run_dir(old, force=True)
    assert left_in(old) == [("manifest.json", 0)]


@pytest.mark.parametrize("name", ["notes.txt", "processes/thesis.tex", "processes/host-1-2/notes.txt"])
def test_force_deletes_nothing_that_is_not_kvtraces(old: Path, name: str) -> None:
    (old / name).write_text("years of work")
    before = sorted(old.rglob("*"))
    with pytest.raises(KvtraceError, match=Path(name).name):
        make_run_dir(old, force=True)
    assert sorted(old.rglob("*")) == before


def test_force_does_not_follow_links(old: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "journal.jsonl").write_text("{}")
    (old / "processes" / "host-3-4").symlink_to(elsewhere)
    with pytest.raises(KvtraceError, match="host-3-4"):
        make_run_dir(old, force=True)
    assert (elsewhere / "journal.jsonl").exists()


def test_force_refuses_what_never_was_a_recording(tmp_path: Path) -> None:
    (tmp_path / "processes").mkdir()
    with pytest.raises(KvtraceError, match="does not look like a run directory"):
        make_run_dir(tmp_path, force=True)


def test_force_refuses_a_recording_that_goes_on(old: Path) -> None:
    Manifest(["vllm"], 1, pid=os.getpid()).write(old)
    with pytest.raises(KvtraceError, match=str(os.getpid())):
        make_run_dir(old, force=True)


def test_a_file_in_the_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KvtraceError, match="is a file") as caught:
        make_run_dir(tmp_path / "file", force=True)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("place", ["/proc/kvtrace-run", "/dev/null/run"])
def test_a_place_that_cannot_be_written_is_one_error(place: str) -> None:
    with pytest.raises(KvtraceError, match=place) as caught:
        make_run_dir(Path(place), force=False)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
