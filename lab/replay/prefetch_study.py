"""Study of prefetch policies: the share of the oracle's gain that each one gets.

    python -m kvtrace.lab.replay.prefetch_study TRACE --kv-tokens 40000 80000 --spread 0 0.3 1 --seeds 3

TRACE gives the engine's settings and the time model. Each line is a policy at a KV size and a spread of tool times. It
has the mean over seeds of what is saved against the same tier without prefetching, and half its 95% interval's width.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvtrace.lab.replay import process, timing
from kvtrace.lab.replay.policies import PREFETCH
from kvtrace.lab.replay.recording import EngineFacts, read_recording
from kvtrace.lab.replay.settings import changed_settings, recorded_settings
from kvtrace.lab.replay.timing import TimeModel
from kvtrace.lab.workloads.agents import TOOL_S, agent, eight_turns
from kvtrace.lab.workloads.model import Job

_NO_HOST_WORK = ("copy_begin_us=0", "connector_lookup_us=0")
"""The study is about the tier's bandwidth, so copies cost the host nothing."""

RATES = {"eight-turns": 1.0, "agent": 3.0}
"""Jobs a second by workload, unless given."""

_T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t for 95% intervals, by number of seeds."""


class Cell(NamedTuple):
    """One replay."""

    workload: str
    kv_tokens: int
    spread: float
    policy: str
    seed: int


def jobs_of(workload: str, seed: int, count: int) -> list[Job]:
    """Jobs whose tools take their mean times: the study's own spread is put on them."""
    if workload == "eight-turns":
        return eight_turns(seed, jobs=count)
    made = agent(seed, jobs=count, turns=8)
    return [
        replace(job, turns=[replace(turn, tool_s=TOOL_S[turn.tool] if turn.tool_s else 0.0) for turn in job.turns])
        for job in made
    ]


def run_cell(
    recorded: EngineFacts, model: TimeModel, cell: Cell, count: int, rate: float | None, changes: Sequence[str]
) -> dict[str, Any]:
    """Replay a cell. Times in s."""
    from kvtrace.lab.replay.simulate import recording_of, simulate

    engine = replace(recorded, max_model_len=65_536)
    generated = recording_of(
        engine, jobs_of(cell.workload, cell.seed, count), rate or RATES[cell.workload], cell.spread, cell.seed
    )
    blocks = cell.kv_tokens // engine.block_size + 1
    told = [f"num_gpu_blocks={blocks}", *changes, f"prefetch={cell.policy}"]
    settings = changed_settings(engine, recorded_settings(engine), told)
    figures, _ = simulate(generated, settings, model)
    return {
        **cell._asdict(),
        "job_s": float(np.mean(figures.job_s)),
        "ttft_s": float(np.mean(figures.first_s)),
        "hit_share": figures.hit_tokens / figures.prompt_tokens,
        "prefetch": figures.prefetch,
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Lines of Markdown, a policy at a condition each."""
    lines = [
        "| workload | KV tokens | spread | policy | TTFT saved, ms | share of the oracle's | job time saved, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    found = {Cell(*(row[name] for name in Cell._fields)): row for row in rows}
    keys = dict.fromkeys((c.workload, c.kv_tokens, c.spread) for c in found)
    seeds = sorted({c.seed for c in found})
    best = "oracle" if any(c.policy == "oracle" for c in found) else "none"
    for (workload, kv, spread), policy in itertools.product(keys, dict.fromkeys(c.policy for c in found)):
        done = [seed for seed in seeds if Cell(workload, kv, spread, policy, seed) in found]
        if policy == "none" or not done:
            continue
        gains = {
            key: np.array([[_gain(found, workload, kv, spread, each, seed, key) for seed in done]
                           for each in (policy, best)]) * 1e3
            for key in ("ttft_s", "job_s")
        }  # fmt: skip
        ttft, oracle = gains["ttft_s"]
        share = f"{ttft.mean() / oracle.mean():.0%}" if oracle.mean() > _half_width(oracle) else "no gain"
        share = share if best == "oracle" else "-"
        lines.append(
            f"| {workload} | {kv:,} | {spread:g} | {policy} | {ttft.mean():.1f} ± {_half_width(ttft):.1f} | {share} "
            f"| {gains['job_s'][0].mean():.0f} ± {_half_width(gains['job_s'][0]):.0f} |"
        )
    return lines


def _gain(found: dict[Cell, Any], workload: str, kv: int, spread: float, policy: str, seed: int, key: str) -> float:
    without = found[Cell(workload, kv, spread, "none", seed)][key]
    return float(without - found[Cell(workload, kv, spread, policy, seed)][key])


def _half_width(values: Any) -> float:
    count = len(values)
    if count < 2:
        return float("nan")
    return float(_T_95.get(count, 1.96) * values.std(ddof=1) / count**0.5)


def _in_fork(task: tuple[Any, ...]) -> dict[str, Any]:
    return run_cell(*task)


def main() -> None:
    """Run the cells and print the table."""
    parser = argparse.ArgumentParser(description="Prefetch policies against an oracle, predicted.")
    parser.add_argument("trace", type=Path, help="gives settings and step times")
    parser.add_argument("--workload", nargs="+", default=list(RATES))
    parser.add_argument("--kv-tokens", nargs="+", type=int, default=[40_000, 60_000, 80_000])
    parser.add_argument("--spread", nargs="+", type=float, default=[0.0, 0.1, 0.3, 1.0])
    parser.add_argument("--policy", nargs="+", default=list(PREFETCH))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--rate", type=float, help="jobs a second")
    parser.add_argument("--set", nargs="+", default=["tier=disk", "tier_bytes=256GiB", *_NO_HOST_WORK], dest="changes")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rows", type=Path, help="JSON lines of all cells are appended here; known ones are not rerun")
    options = parser.parse_args()
    recording = read_recording(options.trace)
    rows = []
    if options.rows and options.rows.exists():
        rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    known = {Cell(*(row[name] for name in Cell._fields)) for row in rows}
    seeds = range(1, options.seeds + 1)
    wanted = itertools.product(seeds, options.workload, options.kv_tokens, options.spread, options.policy)
    model = timing.fit(recording.steps)
    tasks = [
        (recording.engine, model, cell, options.jobs, options.rate, options.changes)
        for cell in (Cell(workload, kv, spread, policy, seed) for seed, workload, kv, spread, policy in wanted)
        if cell not in known
    ]
    if tasks:
        process.import_vllm()
        process.warm(recording.engine, recorded_settings(recording.engine))
    with multiprocessing.get_context("fork").Pool(options.processes, maxtasksperchild=1) as pool:
        for row in pool.imap(_in_fork, tasks):
            rows.append(row)
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    sys.stdout.write("\n".join(table(rows)) + "\n")


if __name__ == "__main__":
    main()
