"""Comparisons between cells: which ones are comparable, how paired jobs differ, and what makes it unfair."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvtrace.lab.matrix import text_of
from kvtrace.lab.results import Phase, Result
from kvtrace.queries.statistics import Difference, paired_difference, replicate_difference

LATE_MS = 50.0
"""A client that sent a request so long after its time was itself too slow."""

_WORKLOAD_AXES = {"rate", "jobs", "concurrency", "phases", "seed"}
_CAPACITY_AXES = {"kv_tokens", "block_size", "model"}


@dataclass(frozen=True)
class Change:
    """The difference of a metric's mean between two values of the compared axis, over jobs that both completed."""

    group: dict[str, str]
    phase: str
    value: str
    metric: str
    difference: Difference


def groups(results: Sequence[Result], compare: str) -> dict[tuple[tuple[str, str], ...], list[Result]]:
    """Cells that differ in the compared axis and their repeat only."""
    found: dict[tuple[tuple[str, str], ...], list[Result]] = {}
    for result in results:
        rest = {axis: text_of(value) for axis, value in result.cell.axes.items() if axis not in {compare, "repeat"}}
        found.setdefault(tuple(rest.items()), []).append(result)
    return found


def changes(results: Sequence[Result], compare: str, values: Sequence[str]) -> Iterator[Change]:
    """Compare each value with the first one, in each group and phase, by job completion time and time to first token.

    A pair is a job of one repeat in both cells. Where cells run their phases in other orders, a workload is compared
    with itself.
    """
    baseline = values[0]
    for group, members in groups(results, compare).items():
        for name in dict.fromkeys(phase.label for result in members for phase in result.phases):
            by_value = {value: _jobs(members, compare, value, name) for value in values}
            for value in values[1:]:
                for metric in ("jct_s", "ttft_ms"):
                    one, other = by_value[baseline].get(metric, {}), by_value[value].get(metric, {})
                    common = sorted(one.keys() & other.keys())
                    samples = [np.array([[jobs[job]] for job in common]).reshape(-1, 1) for jobs in (one, other)]
                    if (found := paired_difference("mean", *samples)) is not None:
                        yield Change(dict(group), name, value, metric, found)


DRAWN = {"jct_s": "jct_s_mean", "ttft_ms": "ttft_ms_mean"}
"""Figures of cells that tell of the metric of a `Change` whether two runs differ as much. TTFT is one of requests."""
_DRAWN_TOO = ("output_tokens_per_s", "cached_share")


def changes_of_runs(results: Sequence[Result], compare: str, values: Sequence[str]) -> Iterator[Change]:
    """Compare each value with the first one in predicted cells that have draws of step times.

    The interval is that of the difference between a run of each. Repeats have other requests, and rows of their own.
    """
    repeats = any(result.cell.repeat for result in results)
    for group, members in groups(results, compare).items():
        drawn = {
            (result.cell.repeat, text_of(result.cell.axes.get(compare))): phase
            for result in members
            for phase in result.phases
            if phase.draws
        }
        for repeat, value in itertools.product(sorted({repeat for repeat, _ in drawn}), values[1:]):
            base, phase = drawn.get((repeat, values[0])), drawn.get((repeat, value))
            if base is None or phase is None:
                continue
            place = dict(group) | ({"repeat": str(repeat)} if repeats else {})
            for name in (*DRAWN.values(), *_DRAWN_TOO):
                if name in base.draws and name in phase.draws:
                    found = replicate_difference(base.draws[name], phase.draws[name])
                    yield Change(place, phase.workload["name"], value, name, found)


def _jobs(members: Sequence[Result], compare: str, value: str, label: str) -> dict[str, dict[tuple[int, str], float]]:
    found: dict[str, dict[tuple[int, str], float]] = {"jct_s": {}, "ttft_ms": {}}
    for result in members:
        if text_of(result.cell.axes.get(compare)) != value:
            continue
        for phase in result.phases:
            if phase.label == label:
                for metric, jobs in found.items():
                    jobs |= {(result.cell.repeat, job): took for job, took in getattr(phase, metric).items()}
    return found


def unfair(results: Sequence[Result], compare: str) -> list[str]:
    """Return reasons why comparisons along an axis may be unfair, a sentence each."""
    found = []
    for group, members in groups(results, compare).items():
        done = [result for result in members if result.status == "ok"]
        where = ", ".join(f"{axis} {value}" for axis, value in group) or "all cells"
        for repeat in sorted({result.cell.repeat for result in done}):
            same = [result for result in done if result.cell.repeat == repeat]
            prompts = {tuple(phase.workload["sha256"] for phase in result.phases) for result in same}
            if len(prompts) > 1 and compare not in _WORKLOAD_AXES and not compare.startswith("workload."):
                found.append(f"{where}: cells had different prompts or arrivals ({len(prompts)} workloads)")
        if compare not in _CAPACITY_AXES and len(blocks := {_blocks(result) for result in done}) > 1:
            found.append(f"{where}: cells had different numbers of blocks ({_listed(blocks)})")
        software = {tuple(sorted(result.facts.get("software", {}).items())) for result in done}
        if len(software) > 1:
            found.append(f"{where}: cells ran different software ({_changes(software)})")
        if len(devices := {result.facts.get("device") for result in done}) > 1:
            found.append(f"{where}: cells ran on different devices ({_listed(devices)})")
        found += [f"{where}: {text}" for text in (*_failed(done), *_late(done))]
        if missing := [result for result in members if result.status != "ok"]:
            found.append(f"{where}: {len(missing)} of {len(members)} cells failed and are not compared")
    return found


def _named(results: Sequence[Result]) -> Iterator[tuple[str, Result, Phase]]:
    for result in results:
        for phase in result.phases:
            yield (
                f"{text_of(result.cell.axes.get('policy', result.cell.label))}, {phase.workload['name']}",
                result,
                phase,
            )


def _failed(results: Sequence[Result]) -> Iterator[str]:
    for name, _, phase in _named(results):
        jobs, done = phase.workload["jobs"], phase.figures.get("jobs_done") or 0
        sessions = min(jobs, len(phase.jct_s) + int(phase.figures.get("failed") or 0))
        if phase.figures.get("failed"):
            yield f"{name}: {phase.figures['failed']} requests failed; {done} of {sessions} jobs are compared"


def _late(results: Sequence[Result]) -> Iterator[str]:
    """One sentence, as a burst makes the clients of all cells late."""
    sent = [
        (phase.figures.get("late_ms_max") or 0.0, name)
        for name, result, phase in _named(results)
        if result.cell.policy["name"] != "hf-generate"
    ]
    late = sorted(each for each in sent if each[0] > LATE_MS)
    if len(late) == 1:
        ((late_ms, name),) = late
        yield f"{name}: the client sent a request {late_ms:.0f} ms late: it may itself have been too slow"
    elif late:
        (least_ms, _), *_, (most_ms, name) = late
        yield (
            f"in {len(late)} of {len(sent)} runs of a workload the client sent a request {least_ms:.0f} to "
            f"{most_ms:.0f} ms late (most in {name}): it may itself have been too slow"
        )


def _blocks(result: Result) -> Any:
    return result.engine.get("blocks", result.cell.kv_tokens // result.cell.block_size)


def _listed(values: set[Any]) -> str:
    return ", ".join(sorted(map(str, values)))


def _changes(software: set[tuple[tuple[str, str], ...]]) -> str:
    packages = {name for each in software for name, _ in each}
    versions = {name: {dict(each).get(name, "none") for each in software} for name in sorted(packages)}
    return ", ".join(f"{name} {_listed(found)}" for name, found in versions.items() if len(found) > 1)
