"""`kvtrace lab run --baseline`: each cell of a sweep against the same cell of earlier ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvtrace.cli.main import app
from kvtrace.lab.matrix import read_matrix
from kvtrace.lab.sweep import RESULT, RUN
from tests.report.conftest import run_sql
from tests.traces import write_trace

MATRIX = """
name = "two"
[cell]
model = "tiny"
kv_tokens = 1280
[axes]
rate = [4.0, 16.0]
[workloads.agents]
kind = "agent"
jobs = 2
"""


class Sweeps:
    """Folders of sweeps whose two cells ran; no engine is started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.matrix = folder / "two.toml"
        self.matrix.write_text(MATRIX)
        self.cells = read_matrix(self.matrix).cells

    def add(self, name: str, *slower_ms: float) -> Path:
        """A sweep in which first tokens of each cell come that much later."""
        for cell, more in zip(self.cells, slower_ms, strict=True):
            place = self.folder / name / "cells" / cell.id
            (place / RUN).mkdir(parents=True)
            write_trace(place / RUN / "trace.duckdb", run_sql(slower_ms=more))
            told = {"status": "ok", "error": None, "seconds": 1.0, "started_ns": 0}
            (place / RESULT).write_text(json.dumps(told))
        return self.folder / name

    def run(self, output: Path, *options: str | Path) -> Result:
        return CliRunner().invoke(app, ["lab", "run", str(self.matrix), "-o", str(output), *map(str, options)])


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> Sweeps:
    made = Sweeps(tmp_path_factory.mktemp("sweeps"))
    made.add("old", 0, 0)
    made.add("old2", 1, 1)
    made.add("old3", 0, 0)
    return made


def baselines(sweeps: Sweeps) -> list[str | Path]:
    return [part for name in ("old", "old2", "old3") for part in ("--baseline", sweeps.folder / name)]


def test_the_cell_that_got_slower_fails_and_is_named(sweeps: Sweeps) -> None:
    new = sweeps.add("new", 0, 25)
    done = sweeps.run(new, *baselines(sweeps), "--fail-if", "ttft_mean > +5%")
    assert done.exit_code == 3, done.output
    verdicts = [line.split(":")[:2] for line in done.output.splitlines() if "ttft_mean" in line]
    same, slower = (cell.label for cell in sweeps.cells)
    assert sorted(verdicts) == [["failed", f" {slower}"], ["passed", f" {same}"]]


def test_one_baseline_does_not_tell_noise(sweeps: Sweeps) -> None:
    new = sweeps.add("alone", 25, 25)
    done = sweeps.run(new, "--baseline", sweeps.folder / "old", "--fail-if", "ttft_mean > +5%")
    assert done.exit_code == 4
    assert done.output.count("too few repetitions") == 2


def test_a_sweep_that_is_as_before_passes(sweeps: Sweeps) -> None:
    new = sweeps.add("same", 0, 0)
    done = sweeps.run(new, *baselines(sweeps), "--fail-if", "ttft_mean > +5%", "--fail-if", "hit_rate < -2pp")
    assert done.exit_code == 0, done.output
    assert done.output.count("passed: ") == 4


def test_a_cell_that_no_baseline_has_is_told(sweeps: Sweeps) -> None:
    new, lacking = sweeps.add("more", 0, 0), sweeps.add("lacking", 0, 0)
    shutil.rmtree(lacking / "cells" / sweeps.cells[1].id)
    done = sweeps.run(new, "--baseline", lacking, "--fail-if", "ttft_mean > +5%")
    assert done.exit_code == 4
    assert f"no verdict: {sweeps.cells[1].label}: no trace of it in a baseline" in done.output


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--baseline", "nowhere", "--fail-if", "ttft_mean > 1"], "--baseline nowhere: it has no cells"),
        (["--fail-if", "ttft_mean > 1"], "--baseline and --fail-if belong together"),
        (["--baseline", "old"], "--baseline and --fail-if belong together"),
    ],
)
def test_a_mistake_is_told_before_a_cell_runs(sweeps: Sweeps, options: list[str], complaint: str) -> None:
    output = sweeps.folder / "never"
    done = sweeps.run(output, *options)
    assert done.exit_code != 0
    assert complaint in f"{done.output}{done.exception}"
    assert not output.exists()
