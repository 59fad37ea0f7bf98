"""Events are declared once: C's header, what hooks fill and what reads records follow `kvtrace/events.py`."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from kvtrace.capture.header import header
from kvtrace.capture.recorder import Recorder
from kvtrace.events import BLOCK_EVENT, EVENTS, STEP_UPDATE
from kvtrace.launch.summary import Ending, summarize
from tests.probes.records import records_of
from tests.probes.test_blocks import Recorded

ROOT = Path(__file__).parent.parent.parent
NATIVE = Path("kvtrace/capture/native")
SWAPPED = {
    "step_schedule": ("running", "waiting"),
    "step_request": ("scheduled_tokens", "computed_tokens"),
    "block_table": ("position", "block_id"),
    "block_event": ("block_id", "ref_count"),
    "request_event": ("computed_tokens", "output_tokens"),
    "pin_start": ("pin", "block_id"),
}
"""Two fields of one type, by event."""

FOLLOW = (
    "tests/probes/test_blocks.py::test_changes_are_recorded_as_the_model_says",
    "tests/probes/test_steps.py::test_a_step_is_recorded_as_its_model_says",
    "tests/probes/test_steps.py::test_ends_are_recorded_as_their_model_says",
    "tests/probes/test_rows.py::test_fields_are_given_by_name_in_any_order",
    "tests/record/test_compaction.py",
)
"""Tests that name fields and never count them."""

_SWAP = f"""
for _event, _pair in {SWAPPED}.items():
    _names = [field.name for field in EVENTS[_event].fields]
    _fields, (_one, _other) = list(EVENTS[_event].fields), map(_names.index, _pair)
    assert _fields[_one].type == _fields[_other].type
    _fields[_one], _fields[_other] = _fields[_other], _fields[_one]
    object.__setattr__(EVENTS[_event], "fields", tuple(_fields))
"""


def swapped(fields: tuple[Any, ...], one: str, other: str) -> tuple[Any, ...]:
    by_name = {field.name: field for field in fields}
    names = {one: other, other: one}
    return tuple(by_name[names.get(field.name, field.name)] for field in fields)


def test_the_header_is_up_to_date() -> None:
    assert (ROOT / NATIVE / "events.h").read_text() == header(), "run `make docs`, then build the extension"


def test_an_event_declared_otherwise_than_compiled_costs_its_stream_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a declaration that the compiled part does not have: two fields of one type are the other way round
    fields = swapped(BLOCK_EVENT.fields, "block_id", "ref_count")
    monkeypatch.setitem(EVENTS, BLOCK_EVENT.name, dataclasses.replace(BLOCK_EVENT, fields=fields))
    way = Recorded(tmp_path)
    way.recorder.note("role", opens=True, role="engine")

    # WHEN blocks and steps are recorded
    for number in range(1, 4):
        way.do(("insert", 1, 0, bytes(12), number, 1, False))
    way.recorder.stream(BLOCK_EVENT)(*range(len(BLOCK_EVENT.fields)))
    way.recorder.stream(STEP_UPDATE)(update_ns=1, end_ns=2, step=3, output_tokens=4, finished_requests=5)

    # THEN steps are there; blocks are counted, and a line says why, and what to do
    assert records_of(tmp_path, STEP_UPDATE, BLOCK_EVENT) == {"step_update": [(1, 2, 3, 4, 5)], "block_event": []}
    lines = "\n".join(summarize(Ending(tmp_path, 0, 1, asked=True), quiet=False))
    assert "the hook kvtrace.events:block_event failed" in lines
    assert "install kvtrace again; lost: block_event" in lines
    assert "has block_id:i as field 3, kvtrace.events declares ref_count:i" in lines
    assert f"4 (block_event 4) records were dropped in process {os.getpid()} (engine)" in lines
    assert way.disabled == []


def test_a_child_that_records_on_says_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = swapped(STEP_UPDATE.fields, "output_tokens", "finished_requests")
    monkeypatch.setitem(EVENTS, STEP_UPDATE.name, dataclasses.replace(STEP_UPDATE, fields=fields))
    recorder = Recorder(tmp_path)
    recorder._by_name[STEP_UPDATE.name].refuse("update_ns:q end_ns:q")
    recorder._after_fork()
    recorder.note("role", opens=True, role="engine")
    assert "has nothing as field 3" in "".join(path.read_text() for path in tmp_path.rglob("journal.jsonl"))


@pytest.fixture(scope="module")
def compiler() -> list[str]:
    command = (sysconfig.get_config_var("CC") or "cc").split()
    if shutil.which(command[0]) is None or not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        pytest.skip("needs a C compiler and Python's headers")
    return command


def test_when_two_fields_of_one_type_swap_places_everything_follows(tmp_path: Path, compiler: list[str]) -> None:
    # GIVEN this project with some fields swapped in the declaration, its header generated and its extension built anew
    ignored = shutil.ignore_patterns("_native*.so", "__pycache__", "web", "assets", "events.h")
    shutil.copytree(ROOT / "kvtrace", tmp_path / "kvtrace", ignore=ignored)
    for test in ("__init__", "probes/__init__", "probes/records", *(path.split(".py")[0][6:] for path in FOLLOW)):
        target = tmp_path / "tests" / f"{test}.py"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tests" / f"{test}.py", target)
    with (tmp_path / "kvtrace" / "events.py").open("a") as events:
        events.write(_SWAP)
    python = [sys.executable, "-P"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (tmp_path / NATIVE / "events.h").write_text(run(*python, "-m", "kvtrace.capture.header"))
    include = sysconfig.get_paths()["include"]
    sources = sorted(str(path) for path in (tmp_path / NATIVE).glob("*.c"))
    extension = str(tmp_path / "kvtrace" / "capture" / "_native.abi3.so")
    run(*compiler, "-shared", "-fPIC", "-pthread", f"-I{include}", *sources, "-o", extension)

    # WHEN hooks record and records are read, by name, THEN all of it is as before
    where = run(
        *python, "-c", "import kvtrace.capture._native as n, kvtrace.events as e; print(n.__file__, e.__file__)"
    )
    assert where.split() == [extension, str(tmp_path / "kvtrace" / "events.py")]
    told = run(*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", *FOLLOW)
    assert f"{len(FOLLOW) + 2} passed" in told
