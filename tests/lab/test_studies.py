"""The tables of the studies' pages are those of the results that the repository keeps."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest

from kvtrace.lab.accuracy import beside
from kvtrace.lab.matrix import text_of
from kvtrace.lab.results import Phase, Result
from kvtrace.lab.sources import load_sweeps
from tests.lab.cells import first_table

STUDIES = Path(__file__).parent.parent.parent / "docs" / "studies"
RESULTS = STUDIES / "results"
POLICIES = {
    "fcfs": "fcfs",
    "TTL pin": "ttl-pin ttl_s=3.0 threshold_s=2.0 order=jobs",
    "TTL pin, job order": "ttl-pin ttl_s=3.0 threshold_s=2.0 order=jobs",
    **{f"{name} {size} GiB": f"{name} {size} GiB" for name in ("offloading", "lmcache") for size in (16, 128)},
}
"""Policies as the pages name them."""

Cells = dict[tuple[str, int, float], list[Result]]


@cache
def kept(name: str, made: str, *, draws: bool = False) -> Cells:
    """Results by policy, KV tokens and rate; of predicted ones the first draw, or all."""
    found: Cells = {}
    for result in load_sweeps(RESULTS / f"{name}.jsonl.gz").results:
        if result.made == made and (draws or made == "measured" or not result.cell.repeat):
            axes = result.cell.axes
            found.setdefault((text_of(axes["policy"]), result.cell.kv_tokens, float(axes["rate"])), []).append(result)
    return found


def table(page: Path, heading: str) -> list[list[str]]:
    """The rows of the first table behind a text."""
    return first_table(page.read_text().partition(f"\n{heading}")[2])


def says(text: str, value: float) -> bool:
    """Compare a number of a page, which is rounded, with a value."""
    number = re.fullmatch(r"([\d,]+)(\.\d+)?%?", text)
    assert number is not None, text
    half = 0.5 * 10.0 ** -len((number[2] or ".")[1:])
    return abs(float(text.replace(",", "").rstrip("%")) - value) <= half * 1.0001


def figure(name: str, scale: float = 1.0) -> Callable[[Phase], float]:
    return lambda phase: scale * float(phase.figures[name] or 0.0)


def last_over_first(phase: Phase) -> float:
    return phase.turns_ms[-1] / phase.turns_ms[0]


class Shown(NamedTuple):
    """A table of a page: the results it is of, its heading, and what is in it."""

    page: str
    heading: str
    of: Callable[[Phase], float | str | None]


JCT = "## Mean job completion time, s"
CACHED = "## Prompt tokens from a cache, GPU or host"
TABLES = (
    Shown("policy-72", JCT, figure("jct_s_mean")),
    Shown("policy-72", "## Mean turn duration, s", figure("turn_ms_mean", 1e-3)),
    Shown("policy-72", CACHED, figure("cached_share", 100)),
    Shown("policy-72", "## Mean time to first token of later turns, s", figure("ttft_later_ms", 1e-3)),
    Shown("lmcache-8-turns", JCT, figure("jct_s_mean")),
    Shown("lmcache-8-turns", CACHED, figure("cached_share", 100)),
    Shown("lmcache-8-turns", "Last turn over first (T8/T1)", last_over_first),
    Shown("lmcache-8-turns", "## Failure modes and regimes", lambda phase: phase.shape),
)


@pytest.mark.parametrize("shown", TABLES, ids=lambda shown: f"{shown.page}: {shown.heading}")
def test_a_table_of_predicted_cells_is_that_of_the_kept_results(shown: Shown) -> None:
    cells = kept(shown.page, "predicted")
    head, *rows = table(STUDIES / f"{shown.page}.md", shown.heading)
    compared = 0
    for tokens, rate, *row in rows:
        for policy, text in zip(head[2:], row, strict=True):
            (result,) = cells[POLICIES[policy], int(tokens.replace(",", "")), float(rate)]
            value = shown.of(result.phases[0])
            told = text == f"`{value}`" if isinstance(value, str) else value is not None and says(text, value)
            assert told, f"{policy}, {tokens} tokens, {rate} jobs/s: {text} in the page, {value} kept"
            compared += 1
    assert compared == len(cells)


def test_the_noise_of_the_lmcache_study_is_that_of_its_draws() -> None:
    cells = kept("lmcache-8-turns", "predicted", draws=True)
    head, *rows = table(STUDIES / "lmcache-8-turns.md", "- **Noise**")
    places = (90_000, 3.0), (90_000, 3.0), (458_000, 15.0), (458_000, 15.0)
    for (what, *row), place in zip(rows, places, strict=True):
        of = last_over_first if "T8/T1" in what else figure("jct_s_mean")
        for policy, text in zip(head[1:], row, strict=True):
            draws = [of(result.phases[0]) for result in cells[POLICIES[policy], *place]]
            low, high = text.split(" to ")
            assert len(draws) == 3
            assert says(low, min(draws)), (what, policy, draws)
            assert says(high, max(draws)), (what, policy, draws)


def spans(text: str, values: Sequence[float]) -> bool:
    """Compare `mean (low-high)` of a page, or a mean alone, with values."""
    mean, _, ends = text.rstrip(")").partition(" (")
    told = [mean, *ends.split("-")] if ends else [mean]
    return all(map(says, told, [fmean(values), min(values), max(values)]))


@cache
def figures_of(name: str, study: str, made: str, figure: str, scale: float = 1.0) -> dict[tuple[str, ...], list[float]]:
    """A figure of all repeats, by their axes."""
    found: dict[tuple[str, ...], list[float]] = {}
    for result in load_sweeps(RESULTS / f"{name}.jsonl.gz").results:
        if result.cell.study == study and result.made == made and result.status == "ok":
            axes = tuple(text_of(value) for axis, value in result.cell.axes.items() if axis not in ("repeat", "made"))
            found.setdefault(axes, []).append(scale * float(result.phases[0].figures[figure] or 0.0))
    return found


def test_throughput_of_the_paging_lab_is_that_of_the_kept_results() -> None:
    columns = [
        ("measured", "output_tokens_per_s", 1.0),
        ("predicted", "output_tokens_per_s", 1.0),
        ("measured", "jct_s_mean", 1.0),
        ("measured", "ttft_ms_mean", 1e-3),
        ("measured", "wasted_share", 100.0),
    ]
    rows = table(STUDIES / "paging.md", "## Throughput by")[1:]
    for made, figure, _ in columns:
        assert set(figures_of("paging", "paging-batching", made, figure)) == {(row[0], row[1]) for row in rows}
    for seqs, block_size, *row in rows:
        for text, (made, figure, scale) in zip(row, columns, strict=True):
            values = figures_of("paging", "paging-batching", made, figure, scale)[seqs, block_size]
            assert len(values) == 3
            assert spans(text, values), (seqs, block_size, made, figure, text, values)


def test_the_baseline_of_the_paging_lab_is_that_of_the_kept_results() -> None:
    figures = ("output_tokens_per_s", "jct_s_mean", "ttft_ms_mean")
    rows = table(STUDIES / "paging.md", "## Paging against fixed batches")[1:]
    for (_, *row), figure in zip(rows, figures, strict=True):
        found = figures_of("paging", "paging-baseline", "measured", figure)
        for text, policy in zip(row, ("fcfs", "hf-generate batch=16"), strict=True):
            assert spans(text, found[(policy,)]), (policy, figure, text, found)


MODELS = {"Llama-2-7B": "llama-2-7b-64k", "Llama-3.1-8B": "llama-3.1-8b", "OPT-13B": "opt-13b"}


def test_preemptions_of_the_kv_caching_study_are_those_of_the_kept_results() -> None:
    results = load_sweeps(RESULTS / "kv-caching.jsonl.gz").results
    found = {
        (result.cell.model, result.cell.kv_tokens, bool(result.cell.engine)): result.phases[0]
        for result in results
        if result.made == "predicted" and result.cell.study.startswith("kv-caching-memory")
    }
    compared = 0
    for model, tokens, preempted, preempted_1, passes, passes_1 in table(
        STUDIES / "kv-caching.md", "## What preemptions cost"
    )[1:]:
        for watermark, figure, text in (
            (False, "preemptions", preempted),
            (True, "preemptions", preempted_1),
            (False, "passes", passes),
            (True, "passes", passes_1),
        ):
            phase = found[MODELS[model], int(tokens.replace(",", "")), watermark]
            ours = text.rpartition(" / ")[2].replace(",", "")
            assert int(ours) == phase.figures[figure], (model, tokens, watermark, figure)
            compared += 1
    assert compared == 2 * len(found)


def test_passes_of_the_kv_caching_study_are_those_of_the_kept_results() -> None:
    found = {
        (str(result.cell.max_num_batched_tokens), phase.workload["name"]): phase
        for result in load_sweeps(RESULTS / "kv-caching.jsonl.gz").results
        if result.made == "predicted" and result.cell.study == "kv-caching-chunks"
        for phase in result.phases
    }
    for budget, *row in table(STUDIES / "kv-caching.md", "## Forward passes by token budget")[1:]:
        for workload, text in zip(("zipf-20", "zipf-10-2k", "zipf-10-4k"), row, strict=True):
            phase = found[budget.partition(" ")[0].replace(",", ""), workload]
            assert int(text.rpartition(" / ")[2]) == phase.figures["passes"], (budget, workload)
    told, ours = table(STUDIES / "kv-caching.md", "of these 80 passes")
    passes: list[int] = []
    for places, tokens in zip(told[1:], ours[1:], strict=True):
        first, *last = map(int, re.split(" to |, ", places))
        passes += [int(tokens.replace(",", ""))] * (1 + (last[0] - first if last else 0))
    assert found["4096", "zipf-20"].first_passes_tokens == passes


def source_of(cell: str) -> str:
    """The results that have a measured cell: those on an H200 were predicted with its step times."""
    return "policy-72-h200" if "825,000" in cell else "policy-72-unequal" if cell.endswith("*") else "policy-72"


def test_measured_cells_of_the_policy_study_stand_beside_their_predictions() -> None:
    compared = 0
    for cell, jobs, _, now, *_ in table(STUDIES / "policy-72.md", "## Measured cells")[1:]:
        policy, tokens, rate = re.fullmatch(r"(.+), ([\d,]+), (\d+)/s(?: \*)?", cell).groups()  # type: ignore[union-attr]
        place = POLICIES[policy], int(tokens.replace(",", "")), float(rate)
        found = {
            made: [
                result.phases[0].figures["jct_s_mean"] or 0.0
                for result in kept(source_of(cell), made)[place]
                if cell.endswith("*") == (result.cell.study == "policy-72-unequal")
            ]
            for made in ("measured", "predicted")
        }
        assert jobs.split(", ") == [str(seconds) for seconds in found["measured"]], cell
        assert says(now.partition(" ")[0], *found["predicted"]), cell
        compared += len(found["measured"])
    assert compared == 35


@pytest.mark.parametrize(
    ("name", "runs", "error"),
    [
        ("policy-72", 24, 0.06),
        ("policy-72-h200", 8, 0.05),
        ("policy-72-unequal", 6, 0.08),
        ("policy-72-simple-cpu", 6, 0.10),
        ("lmcache-8-turns-40-jobs", 5, 0.10),
        ("lmcache-8-turns-roadmap", 6, 0.07),
    ],
)
def test_kept_results_have_measured_cells_beside_predicted_ones(name: str, runs: int, error: float) -> None:
    pairs = beside(load_sweeps(RESULTS / f"{name}.jsonl.gz").results)
    assert len(pairs) == runs
    assert sum(abs(pair.error("jct_s_mean")) for pair in pairs) / runs < error


@pytest.mark.parametrize("path", sorted(RESULTS.iterdir()), ids=lambda path: path.name)
def test_kept_results_name_no_folder(path: Path) -> None:
    assert path.name.endswith(".jsonl.gz")
    strings = re.findall(rb'"((?:[^"\\]|\\.)*)"', gzip.decompress(path.read_bytes()))
    assert not [string for string in strings if string.startswith(b"/") or b"/work" in string or b"/tmp" in string]
