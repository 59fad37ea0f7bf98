"""Replay's predictions of measured cells beside what was measured, and how many pairs of cells they order rightly.

    python -m bench.replay_cells CELLS --base TRACE [--base TRACE ...] [--repeat TRACE]

CELLS is a folder of `kvtrace lab run` (`OUT/cells`), whose cells have a trace (`run/trace.duckdb`). Each cell is
predicted from the base of its own rate, with the cell's policy and sizes, closed loop and fitted times, and
a base from bases of lower rates. A repetition of a cell tells the noise: pairs of cells that differ by no more than it
are left out of the order.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import NamedTuple

from kvtrace.errors import KvtraceError
from kvtrace.lab.replay import timing
from kvtrace.lab.replay.cell import settings_of
from kvtrace.lab.replay.check import Outcome, outcome
from kvtrace.lab.replay.drive import Loop
from kvtrace.lab.replay.recording import read_recording
from kvtrace.lab.replay.run import Job, replay
from kvtrace.lab.replay.settings import changed_settings, recorded_settings

JOB, TTFT_P50 = ("job", 0), ("ttft", 1)
"""A latency of `Outcome.latency_ms`, and the place of its figure: 0 the mean, 1 the median."""


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


def predict(base: Cell, cells: list[Cell]) -> list[Outcome]:
    """Outcomes of cells, predicted from one recording. Cells of another rate have their jobs arrive as much faster."""
    recording = read_recording(base.trace)
    settings, model = recorded_settings(recording.engine), timing.fit(recording.steps)
    jobs = []
    for cell in cells:
        changed = changed_settings(recording.engine, settings, changes_of(cell))
        jobs.append(
            Job(cell.name, changed, model, Loop("closed", cell.rate / base.rate), Path("none"), figures_only=True)
        )
    found = []
    for done in replay(recording, jobs, at_once=2):
        if isinstance(done, KvtraceError):
            raise done
        found.append(done.outcome)
    return found


def row(cell: Cell, predicted: Outcome, measured: Outcome) -> str:
    texts = [
        f"{predicted.hit_share:.1%} / {measured.hit_share:.1%}",
        f"{predicted.evictions:,} / {measured.evictions:,}",
    ]
    for key, place in (JOB, TTFT_P50):
        mine, real = predicted.latency_ms[key][place], measured.latency_ms[key][place]
        texts.append(f"{mine:,.0f} / {real:,.0f} ({mine / real - 1:+.0%})")
    return f"{cell.name[:44]:44} {texts[0]:>15} {texts[1]:>17} {texts[2]:>24} {texts[3]:>22}"


def print_order(pairs: list[tuple[Outcome, Outcome]], noise: float) -> None:
    """Share of pairs of cells whose mean job times replay orders as measured."""
    for least in sorted({noise, 0.02, 0.04}):
        right = asked = 0
        for (mine, real), (other_mine, other_real) in itertools.combinations(pairs, 2):
            ratio = real.latency_ms["job"][0] / other_real.latency_ms["job"][0]
            if max(ratio, 1 / ratio) - 1 > least:
                asked += 1
                right += (mine.latency_ms["job"][0] > other_mine.latency_ms["job"][0]) == (ratio > 1)
        print(f"order of job times: {right} of {asked} pairs that differ by more than {least:.1%}")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", type=Path)
    parser.add_argument("--base", action="append", required=True, help="name of a cell to predict from; one a rate")
    parser.add_argument("--repeat", type=Path, help="trace of a second recording of one of the cells")
    parser.add_argument("--repeat-of", help="which cell that is")
    options = parser.parse_args(arguments)
    cells = read_cells(options.cells)
    bases = [cell for cell in cells if any(cell.name.startswith(name) for name in options.base)]
    print(f"{'predicted / measured':44} {'hit share':>15} {'evictions':>17} {'mean job, ms':>24} {'p50 TTFT, ms':>22}")
    pairs = []
    for base in bases:
        asked = [cell for cell in cells if cell.rate == base.rate or (cell in bases and cell.rate > base.rate)]
        for cell, predicted in zip(asked, predict(base, asked), strict=True):
            measured = outcome(cell.trace)
            remark = " (base)" if cell is base else f" (from {base.rate:g}/s)" if cell.rate != base.rate else ""
            print(row(cell, predicted, measured) + remark)
            if not remark:
                pairs.append((predicted, measured))
    noise = 0.0
    if options.repeat:
        mine = outcome(options.repeat).latency_ms["job"][0]
        real = next(outcome(cell.trace) for cell in cells if cell.name.startswith(options.repeat_of)).latency_ms["job"][
            0
        ]
        noise = abs(mine / real - 1)
        print(f"a repetition of {options.repeat_of}: mean job time {mine / real - 1:+.1%}")
    print_order(pairs, noise)


if __name__ == "__main__":
    main(sys.argv[1:])
