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
Column = tuple[str, str, float]
"""Of a table: measured or predicted, the figure, and what it is multiplied by."""


@cache
def results_of(*names: str) -> list[Result]:
    """All kept results of studies."""
    return load_sweeps(*(RESULTS / f"{name}.jsonl.gz" for name in names)).results


@cache
def kept(name: str, made: str, *, draws: bool = False) -> Cells:
    """Results by policy, KV tokens and rate; of predicted ones the first draw, or all."""
    found: Cells = {}
    for result in results_of(name):
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
    for result in results_of(name):
        if result.cell.study == study and result.made == made and result.status == "ok":
            axes = tuple(text_of(value) for axis, value in result.cell.axes.items() if axis not in ("repeat", "made"))
            found.setdefault(axes, []).append(scale * float(result.phases[0].figures[figure] or 0.0))
    return found


def check_draws(name: str, study: str, axes: tuple[str, ...], row: list[str], columns: list[Column]) -> None:
    """Compare a row of a page with a cell's three draws."""
    for text, (made, figure, scale) in zip(row, columns, strict=True):
        values = figures_of(name, study, made, figure, scale)[axes]
        assert len(values) == 3
        assert spans(text, values), (axes, made, figure, text, values)


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
        check_draws("paging", "paging-batching", (seqs, block_size), row, columns)


def test_the_baseline_of_the_paging_lab_is_that_of_the_kept_results() -> None:
    figures = ("output_tokens_per_s", "jct_s_mean", "ttft_ms_mean")
    rows = table(STUDIES / "paging.md", "## Paging against fixed batches")[1:]
    for (_, *row), figure in zip(rows, figures, strict=True):
        found = figures_of("paging", "paging-baseline", "measured", figure)
        for text, policy in zip(row, ("fcfs", "hf-generate batch=16"), strict=True):
            assert spans(text, found[(policy,)]), (policy, figure, text, found)


MODELS = {"Llama-2-7B": "llama-2-7b-64k", "Llama-3.1-8B": "llama-3.1-8b", "OPT-13B": "opt-13b"}


def counts(text: str) -> int:
    """The last of the numbers of a cell, which is ours."""
    return int(text.rpartition(" / ")[2].replace(",", ""))


@pytest.mark.parametrize("made", ["predicted", "measured"])
def test_preemptions_of_the_kv_caching_study_are_those_of_the_kept_results(made: str) -> None:
    found = {
        (result.cell.model, result.cell.kv_tokens, bool(result.cell.engine)): result.phases[0]
        for result in results_of("kv-caching")
        if result.made == made and result.cell.study.startswith("kv-caching-memory")
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
            assert counts(text) == phase.figures[figure], (model, tokens, watermark, figure)
            compared += 1
    assert compared == 2 * len(found)


@pytest.mark.parametrize("made", ["predicted", "measured"])
def test_passes_of_the_kv_caching_study_are_those_of_the_kept_results(made: str) -> None:
    found = {
        (str(result.cell.max_num_batched_tokens), phase.workload["name"]): phase
        for result in results_of("kv-caching")
        if result.made == made and result.cell.study == "kv-caching-chunks"
        for phase in result.phases
    }
    for budget, *row in table(STUDIES / "kv-caching.md", "## Forward passes by token budget")[1:]:
        for workload, text in zip(("zipf-20", "zipf-10-2k", "zipf-10-4k"), row, strict=True):
            phase = found[budget.partition(" ")[0].replace(",", ""), workload]
            assert counts(text) == phase.figures["passes"], (budget, workload)
    told, ours = table(STUDIES / "kv-caching.md", "of these 80 passes")
    passes: list[int] = []
    for places, tokens in zip(told[1:], ours[1:], strict=True):
        first, *last = map(int, re.split(" to |, ", places))
        passes += [int(tokens.replace(",", ""))] * (1 + (last[0] - first if last else 0))
    assert found["4096", "zipf-20"].first_passes_tokens == passes


@cache
def kv_caching(study: str, made: str, workloads: tuple[str, ...], figure: str, *files: str) -> dict[str, float]:
    """Mean of a figure over the phases of workloads, by what sets the cells of a study of `kv-caching-*.toml` apart."""
    found: dict[str, float] = {}
    for result in results_of(*files or ("kv-caching",)):
        if result.made == made and result.cell.study == f"kv-caching-{study}":
            values = [phase.figures[figure] for phase in result.phases if phase.workload["name"] in workloads]
            kept_ones = [value for value in values if value is not None]
            axes = {axis: value for axis, value in result.cell.axes.items() if axis not in ("repeat", "made")}
            if kept_ones:
                found.setdefault(", ".join(map(text_of, axes.values())), fmean(kept_ones))
    return found


def check(text: str, study: str, cell: str, workloads: tuple[str, ...], figure: str) -> None:
    """Compare `published / predicted / measured` of the page with what is kept, `-` with what is not."""
    for told, made in zip(text.split(" / ")[1:], ("predicted", "measured"), strict=True):
        value = kv_caching(study, made, workloads, figure).get(cell)
        assert (told == "-") if value is None else says(told, value), (study, cell, workloads, figure, told, value)


def test_tokens_a_second_by_budget_are_those_of_the_kept_results() -> None:
    rows = table(STUDIES / "kv-caching.md", "Tokens a second, published /")[1:]
    assert len(rows) == 8
    for budget, *row in rows:
        whole = budget == "whole prompts"
        study, cell = ("passes", "llama-2-7b-64k") if whole else ("chunks", budget.replace(",", ""))
        for text, workloads, figure in zip(
            row,
            (("zipf-20",), ("zipf-10-4k",), ("p8191", "p8191x1")),
            ("tokens_per_s", "tokens_per_s", "pass_tokens_per_s"),
            strict=True,
        ):
            check(text, study, cell, workloads, figure)


def test_returns_of_evicted_requests_are_those_of_the_kept_results() -> None:
    rows = table(STUDIES / "kv-caching.md", "## Return of an evicted request")[1:]
    assert len(rows) == 5
    for size, *row in rows:
        for text, cell in zip(row, ("fcfs, 16", "offloading 64 GiB, 16", "offloading 64 GiB, 64"), strict=True):
            workload = f"evict-{size.replace(' K', 'k')}"
            check(text, "returns", cell, (workload,), "ttft_later_ms")


def test_runs_of_the_same_cell_are_as_far_apart_as_the_page_says() -> None:
    runs: dict[str, list[Result]] = {}
    for result in results_of("kv-caching"):
        if result.made == "measured":
            runs.setdefault(result.name, []).append(result)
    twice = [found for found in runs.values() if len(found) > 1]
    assert len(twice) == 12
    ratios: dict[str, list[float]] = {}
    for one, other in twice:
        for figure in ("passes", "preemptions", "recomputed_tokens"):
            assert [p.figures[figure] for p in one.phases] == [p.figures[figure] for p in other.phases]
        if one.cell.study != "kv-caching-passes":
            returns = one.cell.study == "kv-caching-returns"
            kind = "returns" if returns else f"{min(one.cell.max_num_batched_tokens or 0, 1024):,}"
            for workload in {phase.workload["name"] for phase in one.phases}:
                took = [
                    fmean(float(p.figures["makespan_s"] or 0) for p in run.phases if p.workload["name"] == workload)
                    for run in (one, other)
                ]
                ratios.setdefault(kind, []).append(took[1] / took[0])
    rows = table(STUDIES / "kv-caching.md", "## Runs of the same cell")[1:]
    assert len(rows) == len(ratios) == 5
    for cells, spread, _ in rows:
        found = next(values for kind, values in ratios.items() if kind in cells)
        for text, value in zip(spread.split(" to "), (min(found), max(found)), strict=True):
            assert says(text, value), (cells, found)


def test_passes_by_model_are_those_of_the_kept_results() -> None:
    rows = table(STUDIES / "kv-caching.md", "## Tokens a second of a pass")[1:]
    assert len(rows) == 8
    for prompts, *prefill, requests, decode_2, decode_3 in rows:
        jobs, tokens = prompts.replace(",", "").split(" of ")
        for workload, figure, cells in (
            (f"p{tokens}x{jobs}", "prefill_tokens_per_s", prefill),
            (f"d{requests}", "decode_tokens_per_s", [decode_2, decode_3]),
        ):
            for text, model in zip(cells, ("llama-2-7b-64k", "llama-3.1-8b"), strict=True):
                check(text, "passes", model, (workload,), figure)


def test_makespans_predicted_from_passes_are_those_of_the_kept_results() -> None:
    rows = table(STUDIES / "kv-caching.md", "Makespan, s, predicted from one model's agents")[1:]
    assert len(rows) == 16
    for what, size, *row, error in rows:
        if "128 requests" in what:
            model = what.partition(",")[0]
            study = {"Llama-2-7B": "memory", "OPT-13B": "memory-opt", "Llama-3.1-8B": "memory-llama"}[model]
            cell, workload = (f"{size.replace(',', '')}, {{}}" if study == "memory" else "{}"), "zipf-128"
        else:
            jobs, tokens = size.split(" of ")
            workload = f"{tokens.replace(' K', 'k')}-{jobs}"
            study, cell = ("overflow", "offloading 64 GiB") if what == "offloading" else ("overflow-uncached", "{}")
        agents, own, measured = (
            kv_caching(study, made, (workload,), "makespan_s", *files)[cell]
            for made, files in (
                ("predicted", ()),
                ("predicted", ("kv-caching-own-passes", "kv-caching")),
                ("measured", ()),
            )
        )
        for text, value in zip(row, (agents, own, measured), strict=True):
            assert says(text, value), (what, size, text, value)
        assert error == f"{100 * (own / measured - 1):+.1f}%"


def test_makespans_under_memory_pressure_are_predicted_from_passes() -> None:
    pairs = beside(results_of("kv-caching-own-passes", "kv-caching"))
    studies = [f"kv-caching-{name}" for name in ("memory", "memory-opt", "overflow", "overflow-uncached")]
    errors = [abs(pair.error("makespan_s")) for pair in pairs if pair.measured.cell.study in studies]
    text = (STUDIES / "kv-caching.md").read_text().replace("\n ", "")
    [told] = re.findall(r"Over the (\d+) phases .* the mean absolute error is ([\d.]+)%, the largest ([\d.]+)%", text)
    assert told == (f"{len(errors)}", f"{100 * fmean(errors):.1f}", f"{100 * max(errors):.1f}")


@cache
def prefix_cache(study: str, made: str = "measured") -> list[Result]:
    """All draws of a matrix of the prefix cache."""
    return [
        result for result in results_of("prefix-cache") if (result.cell.study, result.made) == (f"prefix-{study}", made)
    ]


def of_phases(results: Sequence[Result], name: str, figure: str, scale: float = 1.0) -> list[float]:
    """A figure of the phases with a workload, of all draws."""
    return [
        scale * float(phase.figures[figure] or 0.0)
        for result in results
        for phase in result.phases
        if phase.workload["name"] == name
    ]


def test_orders_of_phases_are_those_of_the_kept_results() -> None:
    rows = table(STUDIES / "prefix-cache.md", "## Cold and warm, shared and unique")[1:]
    assert len(rows) == 8
    sizes = {"4,096": "long", "512": "short"}
    for at, (prompts, again, cached, *row) in enumerate(rows):
        size, workload = (prompts or rows[at - 1][0]).split(" tokens, ")
        for text, first in zip(row, ("shared", "unique"), strict=True):
            phases = [
                phase.figures
                for result in prefix_cache("order")
                if (result.cell.axes["workload.size"], result.cell.phases[0]) == (sizes[size], first)
                for phase in result.phases
                if (phase.workload["name"], phase.again) == (workload, again == "again")
            ]
            assert len(phases) == 3
            assert spans(text, [float(figures["ttft_ms_mean"] or 0) for figures in phases]), (prompts, again, first)
            assert all(says(cached, 100 * float(figures["cached_share"] or 0)) for figures in phases)


def test_pressure_on_the_prefix_cache_is_that_of_the_kept_results() -> None:
    rows = table(STUDIES / "prefix-cache.md", "## Under pressure")[1:]
    assert len(rows) == 7
    for families, _, cached, evicted, ttft, predicted, job in rows:
        name = "unique-16" if "nothing" in families else f"families-{families}"
        measured = prefix_cache("pressure")
        for made in ("measured", "predicted"):
            results = prefix_cache("pressure", made)
            assert all(says(cached, value) for value in of_phases(results, name, "cached_share", 100)), name
            assert set(of_phases(results, name, "evicted_blocks")) == {float(evicted.replace(",", ""))}, name
        assert spans(ttft, of_phases(measured, name, "ttft_ms_mean")), name
        assert says(job, fmean(of_phases(measured, name, "jct_s_mean"))), name
        assert says(predicted, fmean(of_phases(prefix_cache("pressure", "predicted"), name, "ttft_ms_mean"))), name


def test_request_counts_are_those_of_the_kept_results() -> None:
    rows = table(STUDIES / "prefix-cache.md", "## Request counts")[1:]
    assert len(rows) == 4
    for requests, cached, ttft, rate, predicted, unique_ttft, unique_rate in rows:
        shared, unique = f"requests-{requests}", f"unique-{requests}"
        measured = prefix_cache("counts")
        assert all(says(cached, value) for value in of_phases(measured, shared, "cached_share", 100))
        assert spans(ttft, of_phases(measured, shared, "ttft_ms_mean")), requests
        assert says(rate, fmean(of_phases(measured, shared, "output_tokens_per_s"))), requests
        forecast = of_phases(prefix_cache("counts", "predicted"), shared, "output_tokens_per_s")
        assert says(predicted, fmean(forecast)), requests
        if unique_ttft:
            assert spans(unique_ttft, of_phases(measured, unique, "ttft_ms_mean")), requests
            assert says(unique_rate, fmean(of_phases(measured, unique, "output_tokens_per_s"))), requests


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


def test_pins_and_order_each_without_the_other_are_those_of_the_kept_results() -> None:
    columns = [
        ("measured", "jct_s_mean", 1.0),
        ("predicted", "jct_s_mean", 1.0),
        ("measured", "cached_share", 100.0),
        ("measured", "ttft_later_ms", 1e-3),
        ("measured", "makespan_s", 1.0),
    ]
    policies = ("fcfs", "priority", "ttl-pin ttl_s=3.0 threshold_s=2.0", POLICIES["TTL pin, job order"])
    rows = table(STUDIES / "policy-72.md", "## Pins and order, each without the other")[1:]
    for policy, (_, *row) in zip(policies, rows, strict=True):
        check_draws("h200-pins", "h200-pins", (policy,), row, columns)


@pytest.mark.parametrize(
    ("name", "runs", "error"),
    [
        ("policy-72", 24, 0.06),
        ("policy-72-h200", 8, 0.05),
        ("policy-72-unequal", 6, 0.08),
        ("policy-72-simple-cpu", 6, 0.10),
        ("lmcache-8-turns-40-jobs", 5, 0.10),
        ("lmcache-8-turns-roadmap", 6, 0.07),
        ("paging", 21, 0.25),
        ("prefix-cache", 87, 0.16),
        ("h200-pins", 12, 0.11),
    ],
)
def test_kept_results_have_measured_cells_beside_predicted_ones(name: str, runs: int, error: float) -> None:
    pairs = beside(results_of(name))
    assert len(pairs) == runs
    assert sum(abs(pair.error("jct_s_mean")) for pair in pairs) / runs < error


def test_step_times_from_one_short_cell_are_as_far_off_as_the_page_says() -> None:
    rows = table(STUDIES.parent / "lab.md", "### Step times from one short cell")[1:]
    kept_of = {
        "paging": ("paging", "paging-batching"),
        "pressure": ("prefix-cache", "prefix-pressure"),
        "request counts": ("prefix-cache", "prefix-counts"),
        "orders": ("prefix-cache", "prefix-order"),
        "pins": ("h200-pins", "h200-pins"),
    }
    assert len(rows) == len(kept_of)
    for what, *row in rows:
        name, study = next(kept for word, kept in kept_of.items() if word in what)
        for text, files in zip(row, ((name,), (f"{name}-own-passes", name)), strict=True):
            pairs = [pair for pair in beside(results_of(*files)) if pair.measured.cell.study == study]
            assert len(pairs) == int(re.findall(r", (\d+) ", what)[-1]), what
            errors = [100 * pair.error("jct_s_mean") for pair in pairs]
            mean, lowest, highest = re.fullmatch(r"(.*)% \((.*)% to (.*)%\)", text).groups()  # type: ignore[union-attr]
            assert mean == f"{fmean(map(abs, errors)):.1f}", (what, files)
            assert (lowest, highest) == (f"{min(errors):+.1f}", f"{max(errors):+.1f}"), (what, files)


@pytest.mark.parametrize("page", sorted(STUDIES.glob("*.md")), ids=lambda page: page.stem)
def test_every_table_names_its_command(page: Path) -> None:
    """In its section, as a line to copy or within the text."""
    command = re.compile(r"^ +(for |tar |kvtrace |python )|`(kvtrace|python -m|pytest) [^`]+`", re.MULTILINE)
    a_table = re.compile(r"^ *\|--", re.MULTILINE)
    sections = re.split(r"\n(?=## )", page.read_text())
    unnamed = [text.partition("\n")[0] for text in sections if a_table.search(text) and not command.search(text)]
    assert unnamed == []


@pytest.mark.parametrize("path", sorted(RESULTS.iterdir()), ids=lambda path: path.name)
def test_kept_results_name_no_folder(path: Path) -> None:
    assert path.name.endswith(".jsonl.gz")
    strings = re.findall(rb'"((?:[^"\\]|\\.)*)"', gzip.decompress(path.read_bytes()))
    assert not [string for string in strings if string.startswith(b"/") or b"/work" in string or b"/tmp" in string]
