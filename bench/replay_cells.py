"""Replay's predictions of measured cells beside what was measured, and how many pairs of cells they order rightly.

    python -m bench.replay_cells CELLS [CELLS ...] --base NAME [--base NAME ...] [--draws N]

CELLS is a folder of `kvtrace lab run` (`OUT/cells`), whose cells have a trace (`run/trace.duckdb`). Each cell is
predicted from the base of its own rate, with the cell's policy and sizes, closed loop and fitted times, and
a base from bases of lower rates. With `--draws`, each figure is the mean of N replays with other draws of step times,
and beside it stands their 95% interval: where a measured one lies in it, two runs of the same would differ by as much.

Further folders have the same cells, measured again. Each run is predicted from the bases of its own folder; then the
mean of the predictions stands beside the mean of the runs. What the runs of a cell differ by tells the noise: pairs of
cells that differ by no more than that are left out of the order.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from kvtrace.lab.replay import timing
from kvtrace.lab.replay.cell import settings_of
from kvtrace.lab.replay.check import outcome
from kvtrace.lab.replay.loops import Loop
from kvtrace.lab.replay.recording import read_recording
from kvtrace.lab.replay.resample import figures, over_draws
from kvtrace.lab.replay.run import Job, replay_all
from kvtrace.lab.replay.settings import changed_settings, recorded_settings
from kvtrace.queries.statistics import Interval

GOALS = {"hit_share": 0.01, "evictions": 0.03, "job_mean": 0.10, "ttft_p50": 0.15}
"""Errors that are aimed at: of a hit share in its own unit, of the others relative."""
_NAME = 60
"""Columns of a cell's name."""


class Cell(NamedTuple):
    """A measured cell: its trace, policy with options, and rate."""

    name: str
    trace: Path
    policy: str
    options: dict[str, float]
    rate: float


def read_cells(folder: Path) -> list[Cell]:
    """The cells of a folder that have traces."""
    found = []
    for path in sorted(folder.iterdir()):
        trace, spec = path / "run" / "trace.duckdb", path / "cell.json"
        if trace.exists() and spec.exists():
            found.append(read_cell(path.name, trace, json.loads(spec.read_text())))
    return found


def read_cell(name: str, trace: Path, spec: dict[str, object]) -> Cell:
    policy, workload = spec["policy"], spec["workload"]
    options = dict(policy) if isinstance(policy, dict) else {}
    kind = str(options.pop("name", policy))
    rate = float(workload["rate"]) if isinstance(workload, dict) else 1.0
    return Cell(name, trace, kind, options, rate)


def changes_of(cell: Cell) -> list[str]:
    """The cell's engine as changes of the base's settings."""
    engine = read_recording(cell.trace).engine
    sizes = [f"{name}={getattr(engine, name)}" for name in ("max_num_batched_tokens", "max_num_seqs")]
    return [f"num_gpu_blocks={engine.blocks + 1}", *sizes, *settings_of({"name": cell.policy, **cell.options})]


class Predicted(NamedTuple):
    """Figures of a cell: of one replay, or the means of draws, with their 95% intervals."""

    figures: dict[str, float]
    intervals: dict[str, Interval | None]


class Pair(NamedTuple):
    """A cell as predicted, and as measured."""

    predicted: Predicted
    measured: dict[str, float]


def predict(base: Cell, cells: list[Cell], draws: int) -> list[Predicted]:
    """Predict cells from one recording. Cells of another rate have their jobs arrive as much faster."""
    recording = read_recording(base.trace)
    settings, model = recorded_settings(recording.engine), timing.fit(recording.steps)
    jobs = []
    for cell in cells:
        changed = changed_settings(recording.engine, settings, changes_of(cell))
        jobs.append(
            Job(cell.name, changed, model, Loop("closed", cell.rate / base.rate), Path("none"), figures_only=True)
        )
    if draws:
        spreads = over_draws(recording, jobs, draws, at_once=2)
        return [
            Predicted(
                {key: spread.mean for key, spread in spreads[job.name].items()},
                {key: spread.interval for key, spread in spreads[job.name].items()},
            )
            for job in jobs
        ]
    return [Predicted(figures(each.outcome), {}) for each in replay_all(recording, jobs, at_once=2)]


def row(cell: Cell, predicted: Predicted, measured: dict[str, float]) -> str:
    """A cell's line: predicted / measured, and the interval of draws in brackets."""
    texts = []
    for key in GOALS:
        mine, real, interval = predicted.figures[key], measured[key], predicted.intervals.get(key)
        scale, form = (100, ",.1f") if key == "hit_share" else (1, ",.0f")
        text = f"{mine * scale:{form}}"
        if interval and interval.high - interval.low > 0.002 * abs(mine):
            text += f" [{interval.low * scale:{form}} {interval.high * scale:{form}}]"
        off = "" if key == "hit_share" or not real else f" ({mine / real - 1:+.0%})"
        texts.append(f"{text} / {real * scale:{form}}{off}")
    return f"{cell.name[:_NAME]:{_NAME}} " + " | ".join(f"{text:>38}" for text in texts)


def goals_met(pairs: list[Pair]) -> list[str]:
    """How many cells each figure is within its goal for, and how many more are within the spread of draws."""
    found = []
    for key, goal in GOALS.items():
        near = spread = 0
        for mine, real in pairs:
            error = abs(mine.figures[key] - real[key]) / (1 if key == "hit_share" else real[key] or 1)
            interval = mine.intervals.get(key)
            if error <= goal:
                near += 1
            elif interval and interval.low <= real[key] <= interval.high:
                spread += 1
        unit = "pp" if key == "hit_share" else "%"
        found.append(f"{key}: {near} of {len(pairs)} within {goal * 100:g} {unit}, {spread} more within the spread")
    return found


def print_order(pairs: list[Pair], noise: float) -> None:
    """Share of pairs of cells whose mean job times replay orders as measured."""
    for least in sorted({noise, 0.02, 0.04, 0.05}):
        right = asked = 0
        for (mine, real), (other_mine, other_real) in itertools.combinations(pairs, 2):
            ratio = real["job_mean"] / other_real["job_mean"]
            if max(ratio, 1 / ratio) - 1 > least:
                asked += 1
                right += (mine.figures["job_mean"] > other_mine.figures["job_mean"]) == (ratio > 1)
        print(f"order of job times: {right} of {asked} pairs that differ by more than {least:.1%}")


def compare(cells: list[Cell], named: list[str], draws: int) -> dict[str, Pair]:
    """Print the table of one run. Return what was predicted and measured of its cells, without the bases."""
    bases = [cell for cell in cells if any(cell.name.startswith(name) for name in named)]
    titles = ("hit share, %", "evictions", "mean job, ms", "p50 TTFT, ms")
    print(f"{'predicted / measured':{_NAME}} " + " | ".join(f"{title:>38}" for title in titles))
    pairs = {}
    for base in bases:
        asked = [cell for cell in cells if cell.rate == base.rate or (cell in bases and cell.rate > base.rate)]
        for cell, predicted in zip(asked, predict(base, asked, draws), strict=True):
            measured = figures(outcome(cell.trace))
            remark = " (base)" if cell is base else f" (from {base.rate:g}/s)" if cell.rate != base.rate else ""
            print(row(cell, predicted, measured) + remark)
            if not remark:
                pairs[cell.name] = Pair(predicted, measured)
    return pairs


def mean_of(pairs: list[Pair]) -> Pair:
    """One cell's runs, taken together."""
    predicted = {key: fmean(pair.predicted.figures[key] for pair in pairs) for key in GOALS}
    return Pair(Predicted(predicted, {}), {key: fmean(pair.measured[key] for pair in pairs) for key in GOALS})


def noise_of(runs: list[dict[str, Pair]]) -> float:
    """By how much the mean job time of a cell's runs differs, in the mean over cells; 0 for one run."""
    if len(runs) == 1:
        return 0.0
    means = {}
    for key in GOALS:
        sides = [[run[name].measured[key] for run in runs] for name in runs[0]]
        apart = [max(side) - min(side) if key == "hit_share" else max(side) / (min(side) or 1) - 1 for side in sides]
        means[key] = fmean(apart)
        print(f"{key}: runs of a cell are {means[key]:.1%} apart in the mean, {max(apart):.1%} at most")
    return means["job_mean"]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", type=Path, nargs="+")
    parser.add_argument("--base", action="append", required=True, help="name of a cell to predict from; one a rate")
    parser.add_argument("--draws", type=int, default=0, help="replays of each cell with other draws of step times")
    options = parser.parse_args(arguments)
    runs = [compare(read_cells(folder), options.base, options.draws) for folder in options.cells]
    everywhere = [name for name in runs[0] if all(name in run for run in runs)]
    pairs = [mean_of([run[name] for run in runs]) if len(runs) > 1 else runs[0][name] for name in everywhere]
    for line in goals_met(pairs):
        print(line)
    print_order(pairs, noise_of([{name: run[name] for name in everywhere} for run in runs]))


if __name__ == "__main__":
    main(sys.argv[1:])
