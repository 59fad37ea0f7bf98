"""Results without their recordings, and results of several sweeps in one report."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvtrace.cli.main import app
from kvtrace.errors import KvtraceError
from kvtrace.lab.cell import PREDICTED
from kvtrace.lab.explorer import runs_of
from kvtrace.lab.kept import RESULTS
from kvtrace.lab.report.write import write_report
from kvtrace.lab.sources import load_sweeps

from .cells import Sweep, both_made, drawn, job, table


def reported(target: Path, *sources: Path) -> str:
    """The report on some sources, without its first line, which names them."""
    write_report(sources, target)
    return (target / "report.md").read_text().partition("\n")[2]


def kept_lines(report: Path) -> list[dict[str, Any]]:
    """The lines that a report keeps."""
    return [json.loads(line) for line in gzip.decompress((report / RESULTS).read_bytes()).splitlines()]


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    """A file of kept results with these lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def only(directory: Path, target: Path, *, predicted: bool) -> Path:
    """A copy of a sweep with its predicted or its measured cells alone."""
    shutil.copytree(directory, target)
    for place in (target / "cells").iterdir():
        if place.name.endswith(PREDICTED) != predicted:
            shutil.rmtree(place)
    return target


@pytest.mark.parametrize("made", [both_made, drawn])
def test_a_report_is_made_again_from_the_results_that_it_keeps(made: type[Path], tmp_path: Path) -> None:
    # GIVEN a report, and its sweep no more
    sweep = made(tmp_path / "sweep")
    first = reported(tmp_path / "first", sweep)
    kept = shutil.copy(tmp_path / "first" / RESULTS, tmp_path)
    runs = runs_of([sweep])
    shutil.rmtree(sweep)
    # THEN the same report comes from what it kept, and the explorer has the same runs
    assert reported(tmp_path / "second", Path(kept)) == first
    assert runs_of([Path(kept)]) == runs
    pictures = [sorted(path.name for path in (tmp_path / name).glob("*.svg")) for name in ("first", "second")]
    assert pictures[0] == pictures[1] != []
    # AND what that keeps is the same
    assert (tmp_path / "second" / RESULTS).read_bytes() == Path(kept).read_bytes()


def test_what_is_kept_names_no_machine_and_no_folder(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "sweep", policy=["fcfs"])
    told = {"host": "node-17", "engine_arguments": {"model": "/models/secret"}, "start_s": 3.0}
    workload = {"parameters": {"kind": "mooncake", "path": "/traces/chat.jsonl"}}
    sweep.cell(job("a", 0, 10, 50), facts=told, workload=workload, model="/models/mine")
    reported(tmp_path / "report", sweep.close())
    text = gzip.decompress((tmp_path / "report" / RESULTS).read_bytes()).decode()
    assert '"path":"chat.jsonl"' in text
    assert '"model":"mine"' in text
    assert not any(place in text for place in ("node-17", "/models", "/traces", str(tmp_path)))


def test_measured_and_predicted_cells_of_two_sweeps_stand_side_by_side(tmp_path: Path) -> None:
    # GIVEN measured cells in one folder and predicted ones in another, one of them kept
    both = both_made(tmp_path / "both")
    measured, predicted = (only(both, tmp_path / f"{how}", predicted=how) for how in (False, True))
    reported(tmp_path / "kept", measured)
    # THEN a report on both is the one on a folder with all
    expected = reported(tmp_path / "one", both)
    assert "4 cells are also measured" in expected
    for sources in ((measured, predicted), (tmp_path / "kept" / RESULTS, predicted)):
        assert sorted(reported(tmp_path / "two", *sources).splitlines()) == sorted(expected.splitlines())


def test_a_cell_that_several_sweeps_have_ran_as_often(tmp_path: Path) -> None:
    # GIVEN the same two cells in two folders, run at other speeds
    sweeps = []
    for name, turn_ms in (("first", 100), ("second", 150)):
        sweep = Sweep(tmp_path / name, policy=["fcfs", "priority"], rate=["1.0"])
        for policy in ("fcfs", "priority"):
            sweep.cell(job("a", 0, 10, turn_ms), policy=policy, rate=1.0)
        sweeps.append(sweep.close())
    text = reported(tmp_path / "report", *sweeps)
    # THEN they are two repeats of each, of a study with two cells
    assert "2 of 2 cells ran, 0 failed." in text
    rows = table(text, "Repeats")
    assert {row["JCT mean s"] for row in rows} == {"0.35 (0.3 to 0.4)"}
    assert [row["repeats"] for row in rows] == ["2", "2"]
    # AND a third run is one more, whether of kept results or not
    again = load_sweeps(tmp_path / "report" / RESULTS, sweeps[0])
    assert sorted(result.cell.repeat for result in again.results) == [0, 0, 1, 1, 2, 2]


def test_many_runs_of_a_cell_are_numbered_in_no_time(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "sweep", policy=["fcfs"])
    sweep.cell(error="boom")
    reported(tmp_path / "report", sweep.close())
    *head, result = gzip.decompress((tmp_path / "report" / RESULTS).read_bytes()).splitlines(keepends=True)
    path = tmp_path / "many.jsonl"
    path.write_bytes(b"".join(head) + 10_000 * result)  # in turns, it would be 50 million looks
    assert [each.cell.repeat for each in load_sweeps(path).results] == list(range(10_000))


def test_many_runs_of_a_cell_are_reported_in_no_time(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "sweep", policy=["fcfs"])
    sweep.cell(job("a", 0, 10, 50))
    reported(tmp_path / "report", sweep.close())
    *head, result = gzip.decompress((tmp_path / "report" / RESULTS).read_bytes()).splitlines(keepends=True)
    path = tmp_path / "many.jsonl"
    path.write_bytes(b"".join(head) + 3_000 * result)  # each against each, it would be 160 million looks
    assert f"\n| fcfs | {2_999} |" in reported(tmp_path / "again", path)


def test_each_run_of_a_cell_is_held_against_its_one_prediction(tmp_path: Path) -> None:
    both = both_made(tmp_path / "both")
    again = only(both, tmp_path / "again", predicted=False)
    text = reported(tmp_path / "report", both, again)
    assert "8 runs of 4 cells are also measured" in text
    rows = table(text, "Predicted cells")
    assert [row["JCT error"] for row in rows].count("+6.7%") == 2  # 0.32 s predicted of 0.3, measured twice


def test_values_are_set_side_by_side(tmp_path: Path) -> None:
    # GIVEN two policies at two rates, one of them twice and one cell missing
    sweep = Sweep(tmp_path / "sweep", policy=["fcfs", "priority"], rate=["2.0", "10.0"])
    sweep.cell(job("a", 0, 10, 300), policy="priority", rate=10.0)
    sweep.cell(job("a", 0, 10, 100), rate=2.0)
    sweep.cell(job("a", 0, 10, 200), rate=2.0, repeat=1)
    sweep.cell(job("a", 0, 10, 100), policy="priority", rate=2.0)
    rows = table(reported(tmp_path / "report", sweep.close()), "By policy")
    # THEN each policy has a column, in the order of the study, and rows are in the order of the rates
    assert rows == [
        {"rate": "2.0", "fcfs": "0.4 (0.3 to 0.5)", "priority": "0.3"},
        {"rate": "10.0", "fcfs": "-", "priority": "0.7"},
    ]
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| 2.0 | 0.4 (0.3 to 0.5) | **0.3** |" in text
    assert "| 10.0 | - | 0.7 |" in text, "nothing is best where nothing is to compare"
    assert "| 2.0 | 0.4 | 0.4 |" in text, "nor where all are the same: shares from a cache"


def test_nothing_is_set_side_by_side_of_one_row(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "sweep", policy=["fcfs", "priority"])
    for policy in ("fcfs", "priority"):
        sweep.cell(job("a", 0, 10, 100), policy=policy)
    assert "By policy" not in reported(tmp_path / "report", sweep.close())


GOOD = json.dumps({"kept": 1}).encode() + b"\n"


def packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is empty"),
        (b"name,seconds\n", "line 1, byte 0: JSON is malformed"),
        (packed(GOOD * 900)[:-12], "truncated or damaged"),
        (packed(b""), "is empty"),
        (packed(b'{"kept": 2}\n'), "its format is not 1"),
        (packed(GOOD + b'{"result": {"name": "a"}}\n'), "line 2.* missing required field `status`"),
        (packed(GOOD + b'{"study": {"name": "../a"}}\n'), r"line 2.*\$.study.name"),
        (packed(GOOD + b'{"resu'), "line 2, byte 12: Input data was truncated"),
        (packed(GOOD + b"[]\n"), "Expected `object`, got `array`"),
        (packed(GOOD + b"\xff\n"), "JSON is malformed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_holds_no_results_is_refused_by_name(data: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "other.gz"
    path.write_bytes(data)
    with pytest.raises(KvtraceError, match=why) as error:
        load_sweeps(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"turns_ms": [0.0, 9.0]},
        {"workload": {"name": "w", "sha256": "0", "jobs": 1, "requests": 1, "parameters": {"rate": 10**400}}},
        {"figures": {}},
        {"jct_s": {}},
        None,
    ],
)
def test_kept_results_without_a_figure_are_reported(change: dict[str, Any] | None, tmp_path: Path) -> None:
    """None: a prediction without a phase."""
    reported(tmp_path / "first", both_made(tmp_path / "sweep"))
    lines = kept_lines(tmp_path / "first")
    (predicted, *_) = [line["result"] for line in lines if line.get("result", {}).get("name", "").endswith(PREDICTED)]
    if change is None:
        predicted["phases"] = []
    else:
        predicted["phases"][0] |= change
    path = written(tmp_path / "changed.jsonl", lines)
    assert "Cells" in reported(tmp_path / "second", path)


@pytest.mark.parametrize(
    "change",
    [
        {"position": 1 << 70},
        {"first_passes_tokens": [512, 10**400]},
        {"running": [1e308] * 10},
        {"figures": {"jct_s_mean": -1e19}},
        {"draws": {"jct_s_mean": [1e308] * 8}},
    ],
)
def test_numbers_that_no_trace_has_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    assert reported(tmp_path / "first", both_made(tmp_path / "sweep"))
    lines = kept_lines(tmp_path / "first")
    lines[-1]["result"]["phases"][0] |= change
    path = written(tmp_path / "changed.jsonl", lines)
    with pytest.raises(KvtraceError, match=f"line {len(lines)}.*a number of more than 64 bits"):
        load_sweeps(path)


def test_studies_of_one_name_have_the_same_axes(tmp_path: Path) -> None:
    for name, axes in (("one", {"rate": ["1.0"]}), ("other", {"kv_tokens": [1600]})):
        sweep = Sweep(tmp_path / name, policy=["fcfs"], **axes)
        sweep.cell(job("a", 0, 10, 50), rate=1.0)
        sweep.close()
    with pytest.raises(KvtraceError, match="the name study, and not the same axes: policy, rate and policy, kv_tokens"):
        load_sweeps(tmp_path / "one", tmp_path / "other")


def test_a_file_that_is_not_there_is_not_taken_for_a_folder_without_results(tmp_path: Path) -> None:
    with pytest.raises(KvtraceError, match="there is no file"):
        load_sweeps(tmp_path / "results.jsonl.gz")


def test_the_commands_take_kept_results(tmp_path: Path) -> None:
    sweep, kept = both_made(tmp_path / "sweep"), tmp_path / "sweep" / "report" / RESULTS
    runner = CliRunner()
    assert runner.invoke(app, ["lab", "report", str(sweep)]).exit_code == 0
    refused = runner.invoke(app, ["lab", "report", str(kept)]).exception
    assert isinstance(refused, KvtraceError)
    assert "-o FOLDER" in str(refused)
    shutil.rmtree(sweep / "cells")
    told = runner.invoke(app, ["lab", "report", str(kept), "-o", str(tmp_path / "again")])
    assert (told.exit_code, (tmp_path / "again" / "report.html").exists()) == (0, True)
    site = runner.invoke(app, ["lab", "explorer", str(kept), "-o", str(tmp_path / "site")])
    assert site.output.startswith("8 runs in ")
