"""The process that replays is kept: one for all plans, another where it cannot be. A stand-in runs the plans here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvtrace.errors import KvtraceError
from kvtrace.lab.replay import kept

STAND_IN = """
import os, pathlib, sys, time
for line in sys.stdin:
    plan = pathlib.Path(line.rstrip("\\n"))
    what = plan.read_text()
    if what == "fail":
        sys.exit("failed")
    if what == "meet":
        plan.with_suffix(".here").touch()
        while len(list(plan.parent.glob("*.here"))) < 2:
            time.sleep(0.01)
    if what == "wait":
        time.sleep(60)
    print(os.getpid(), file=sys.stderr, flush=True)
    os.write(1, b".")
"""


@pytest.fixture
def python(tmp_path: Path) -> Iterator[list[str]]:
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    kept.end()
    yield [sys.executable, str(tmp_path / "stand_in.py")]
    kept.end()


def run(python: list[str], plan: Path, what: str = "", longest_s: float = 60, **environment: str) -> str:
    plan.write_text(what)
    return kept.run(python, {**os.environ, **environment}, plan, longest_s)


def test_one_process_runs_all_plans_and_each_has_what_it_wrote(python: list[str], tmp_path: Path) -> None:
    first, second = (run(python, tmp_path / f"plan{number}") for number in range(2))
    assert first == second
    assert len(first.splitlines()) == 1


@pytest.mark.parametrize("told", [{"KVTRACE_TEST": "1"}, {}])
def test_another_environment_or_folder_has_another_process(
    python: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, str]
) -> None:
    first = run(python, tmp_path / "plan")
    if not told:
        monkeypatch.chdir(tmp_path)
    assert run(python, tmp_path / "plan", **told) != first


def test_one_that_ended_tells_why_and_is_replaced(python: list[str], tmp_path: Path) -> None:
    first = run(python, tmp_path / "plan")
    assert run(python, tmp_path / "plan", "fail") == "failed\n"
    assert run(python, tmp_path / "plan") != first
    os.kill(int(run(python, tmp_path / "plan")), 9)  # while nothing runs
    assert run(python, tmp_path / "plan").strip().isdigit()


def test_one_that_takes_too_long_is_ended(python: list[str], tmp_path: Path) -> None:
    pid = int(run(python, tmp_path / "plan"))
    with pytest.raises(KvtraceError, match=r"the replay took more than 0\.2 s and was ended"):
        run(python, tmp_path / "plan", "wait", longest_s=0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert int(run(python, tmp_path / "plan")) != pid


def test_threads_have_one_each_and_one_of_them_is_kept(python: list[str], tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        both = set(pool.map(lambda number: run(python, tmp_path / f"plan{number}", "meet"), range(2)))
    assert len(both) == 2
    assert run(python, tmp_path / "plan") in both
