"""The 72-run policy study's job times beside those of a sweep of `examples/studies/policy-72.toml`.

    python -m bench.policy_72 docs/studies/results/policy-72.jsonl.gz [MORE ...] [--instead POLICY=OTHER ...]

Prints job times over those of FCFS at the same rate, published / found, and how many pairs of policies at one rate that
differ by more than 5% in the study come in its order. `policy_72.json` has the published figures and their source.
Sources are those of `kvtrace lab report`. `--instead offloading=simple-cpu-offload` takes one policy's cells for
another's, where there are such.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from statistics import fmean
from typing import Any

from kvtrace.lab.results import MADES, Result
from kvtrace.lab.sources import load_results
from kvtrace.reports.document import Document, Items, Words, text_table
from kvtrace.reports.markdown import markdown

PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
APART = 0.05
"""Pairs of policies that differ by no more than this in the study are left out of the order."""

Place = tuple[str, str, float]
"""Policy, KV tokens and jobs/s of a cell."""


def main() -> None:
    """Print the table and the counts, for measured and for predicted cells."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--instead", action="append", default=[], metavar="POLICY=OTHER")
    options = parser.parse_args()
    results = [result for result in load_results(*options.sources) if result.status == "ok"]
    for made in MADES:
        runs: dict[Place, list[float]] = {}
        for result in results:
            if result.made == made:
                runs.setdefault(place_of(result), []).append(_job_s(result))
        found = {place: fmean(seconds) for place, seconds in runs.items()}
        for policy, _, other in (text.partition("=") for text in options.instead):
            found |= {
                (name.replace(other, policy, 1), *rest): seconds
                for (name, *rest), seconds in found.items()
                if name.split()[0] == other
            }
        if found:
            _print(made, found)


def place_of(result: Result) -> Place:
    """A cell's place in the study."""
    policy, rate = result.cell.policy, float(result.cell.workload["rate"])
    size = f" {policy['host_gib']:g}" if "host_gib" in policy else ""
    return f"{policy['name']}{size}", f"{result.cell.kv_tokens // 1000}k", rate


def _job_s(result: Result) -> float:
    return float(result.phases[0].figures["jct_s_mean"] or 0.0)


def _print(made: str, found: dict[Place, float]) -> None:
    policies = PUBLISHED["policies"]
    rows: list[list[Any]] = []
    counts: dict[str, list[int]] = {}
    off: dict[str, list[float]] = {}
    for row in PUBLISHED["rows"]:
        told = row["seconds"]
        mine = [
            found.get((policy, tokens, float(row["rate"])))
            for policy, tokens in zip(policies, row["kv_tokens"], strict=True)
        ]
        right, apart = counts.setdefault(row["gpu"], [0, 0])
        for (told_a, mine_a), (told_b, mine_b) in itertools.combinations(zip(told, mine, strict=True), 2):
            if mine_a is not None and mine_b is not None and abs(told_a - told_b) > APART * min(told_a, told_b):
                apart += 1
                right += (told_a - told_b) * (mine_a - mine_b) > 0
        counts[row["gpu"]] = [right, apart]
        if len(set(row["kv_tokens"])) > 1 or mine[0] is None:  # cards of two sizes in a row: no ratio means much
            continue
        ratios = [(a / told[0], None if b is None else b / mine[0]) for a, b in zip(told, mine, strict=True)][1:]
        off.setdefault(row["gpu"], []).extend(abs(b / a - 1) for a, b in ratios if b is not None)
        cells = [Words(f"{a:.2f} / {'-' if b is None else f'{b:.2f}'}") for a, b in ratios]
        rows.append([Words(row["gpu"]), row["rate"], *cells])
    said = []
    for gpu, (right, apart) in counts.items():
        if apart:
            mean = f"; ratios to fcfs are {fmean(off[gpu]):.0%} off on average" if off.get(gpu) else ""
            said.append(f"{gpu}: {right} of {apart} pairs in the study's order{mean}")
    said.append(f"all: {sum(right for right, _ in counts.values())} of {sum(apart for _, apart in counts.values())}")
    blocks = [text_table(["GPU", "jobs/s", *policies[1:]], rows), Items(said, "")]
    title = f"Job time over that of fcfs, published / {made}"
    print(markdown(Document(title, "", blocks, PUBLISHED["source"])))


if __name__ == "__main__":
    main()
