"""Tables of the KV caching study beside the published ones: what the sweeps of its matrices found.

    kvtrace lab run examples/studies/kv-caching-*.toml -o SWEEP [--replay --time-from TRACE]
    python -m bench.kv_caching SWEEP...

SWEEP is a folder, or the file of its results that `kvtrace lab report` keeps. Of a cell that several have, the first
counts.

Prints Markdown: published / predicted / measured, whichever the sweep has. `kv_caching.json` has the published figures
and their source.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from kvtrace.lab.matrix import Cell
from kvtrace.lab.results import MADES, Result
from kvtrace.lab.sources import load_results
from kvtrace.queries.text import rounded
from kvtrace.reports.document import Document, Section, Words, text_table
from kvtrace.reports.markdown import markdown

PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
BUDGETS = ("8192", "4096", "2048", "1024", "512", "256", "128", "64", "32")


def main() -> None:
    """Print all tables that the sweep has cells for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweeps", type=Path, nargs="+")
    results = [result for result in load_results(*parser.parse_args().sweeps) if result.status == "ok"]
    mades = [made for made in reversed(MADES) if any(result.made == made for result in results)]
    by_name: dict[str, dict[str, Result]] = {}
    for result in results:
        by_name.setdefault(result.name, {}).setdefault(result.made, result)
    cells = [Found(next(iter(found.values())).cell, [found.get(made) for made in mades]) for found in by_name.values()]
    sections = []
    for tables in (_passes, _first_passes, _by_model, _returns, _memory, _over_time, _overflows):
        for title, head, rows in tables(cells):
            words = [[Words(value) for value in row] for row in rows]
            sections.append(Section(f"{title}, {' / '.join(('published', *mades))}", "", [text_table(head, words)]))
    print(markdown(Document("The KV caching study", "", sections, PUBLISHED["source"])))


Made = tuple[str, list[str], list[list[str]]]


class Found(NamedTuple):
    """A cell and what was found of it, as it was made: predicted, then measured."""

    cell: Cell
    results: list[Result | None]

    def figure(self, name: str, *workloads: str) -> str:
        """The mean of a figure over the phases of these workloads, of each result."""
        return " / ".join(_text(result and _mean(result, name, workloads)) for result in self.results)

    def pair(self, published: float | None, name: str, *workloads: str) -> str:
        """The same behind what was published."""
        return f"{_text(published)} / {self.figure(name, *workloads)}"


def _mean(result: Result, name: str, workloads: Sequence[str]) -> float | None:
    phases = [phase for phase in result.phases if phase.workload["name"] in workloads]
    values = [value for phase in phases if (value := phase.figures.get(name)) is not None]
    return fmean(values) if values else None


def _text(value: float | None) -> str:
    return "-" if value is None else rounded(value)


def _study(cells: Sequence[Found], name: str) -> list[Found]:
    return [each for each in cells if each.cell.study.removeprefix("kv-caching-").startswith(name)]


def _chunks(cells: Sequence[Found]) -> dict[str, Found]:
    return {str(each.cell.max_num_batched_tokens): each for each in _study(cells, "chunks")}


def _passes(cells: Sequence[Found]) -> Iterator[Made]:
    """By token budget: forward passes of the requests of mixed lengths, and tokens a second."""
    chunks = _chunks(cells)
    if not chunks:
        return
    models = {each.cell.model for each in chunks.values()}
    whole = [("whole", each) for each in _study(cells, "passes") if each.cell.model in models]
    budgets = [*whole, *((budget, chunks[budget]) for budget in BUDGETS if budget in chunks)]
    for title, published, figure in (
        ("Forward passes", "passes", "passes"),
        ("Tokens/s, end to end", "end_to_end_tokens_per_s", "tokens_per_s"),
    ):
        told = PUBLISHED[published]
        rows = [
            [budget, *(each.pair(by_budget.get(budget), figure, name) for name, by_budget in told.items())]
            for budget, each in budgets
        ]
        yield title, ["token budget", *told], rows
    told = PUBLISHED["chunked_p8191_tokens_per_s"]
    rows = [[budget, each.pair(told.get(budget), "pass_tokens_per_s", "p8191", "p8191x1")] for budget, each in budgets]
    yield "Tokens/s of a prompt of 8,191 tokens", ["token budget", "tokens/s"], rows


def _by_model(cells: Sequence[Found]) -> Iterator[Made]:
    """Tokens a second of passes that only prefill, and of those that only decode."""
    passes = _study(cells, "passes")
    for title, figure in (
        ("Tokens/s of a prefill pass", "prefill_tokens_per_s"),
        ("Tokens/s of decode passes", "decode_tokens_per_s"),
    ):
        told = {each.cell.model: PUBLISHED[figure][each.cell.model] for each in passes}
        names = list(dict.fromkeys(name for figures in told.values() for name in figures))
        rows = [
            [name, *(each.pair(told[each.cell.model].get(name), figure, name) for each in passes)] for name in names
        ]
        if rows:
            yield title, ["workload", *told], rows


def _returns(cells: Sequence[Found]) -> Iterator[Made]:
    """Time to the first token of a request whose blocks were evicted, ms."""
    returns = _study(cells, "returns")
    told = PUBLISHED["return_s"]

    def published_ms(cell: Cell, name: str) -> float | None:
        theirs_s = told["recompute" if cell.policy["name"] == "fcfs" else "swap"][name]
        return float(theirs_s) * 1e3 if cell.block_size == 16 else None

    rows = [
        [name, *(each.pair(published_ms(each.cell, name), "ttft_later_ms", name) for each in returns)]
        for name in told["recompute"]
    ]
    if returns:
        head = [f"{cell.policy['name']}, blocks of {cell.block_size}" for cell, _ in returns]
        yield "Return of an evicted request, ms", ["evicted", *head], rows


def _memory(cells: Sequence[Found]) -> Iterator[Made]:
    """By KV memory: preemptions, forward passes, and the time of computing again."""
    rows = []
    memory = _study(cells, "memory")
    for each in sorted(memory, key=lambda each: (each.cell.model, each.cell.kv_tokens, str(each.cell.engine))):
        told = PUBLISHED["preempted"].get(f"{each.cell.model} {each.cell.kv_tokens}", {})
        rows.append([
            each.cell.model,
            rounded(each.cell.kv_tokens),
            rounded(each.cell.engine.get("watermark", 0)),
            each.pair(told.get("resumed"), "preemptions", "zipf-128"),
            each.pair(told.get("passes"), "passes", "zipf-128"),
            each.pair(told.get("seconds"), "recomputing_s", "zipf-128"),
            each.figure("recomputed_tokens", "zipf-128"),
            each.figure("makespan_s", "zipf-128"),
        ])  # fmt: skip
    head = ["model", "KV tokens", "watermark", "preempted", "passes", "computing again, s", "tokens", "makespan, s"]
    if rows:
        yield "128 requests by KV memory", head, rows


def _first_passes(cells: Sequence[Found]) -> Iterator[Made]:
    """Tokens of the first passes: the share of the context that a pass uses, in the study's terms."""
    told, rows = PUBLISHED["first_passes"], []
    chunks = _chunks(cells)
    for budget in BUDGETS:
        if budget not in told or budget not in chunks:
            continue
        rows.append([budget, "published", *map(str, told[budget])])
        for result in filter(None, chunks[budget].results):
            phase = next(phase for phase in result.phases if phase.workload["name"] == "zipf-20")
            rows.append([budget, result.made, *map(str, phase.first_passes_tokens)])
    if rows:
        yield "Tokens of the first 20 passes", ["token budget", "", *map(str, range(1, 21))], rows


def _over_time(cells: Sequence[Found]) -> Iterator[Made]:
    """KV cache usage and running requests by tenth of the run: the study's Figure 11."""
    titles = {"kv_cache_percent": "KV cache usage, %", "running": "Running requests"}
    rows: dict[str, list[list[str]]] = {figure: [] for figure in titles}
    for each in sorted(_study(cells, "memory"), key=lambda each: (each.cell.model, each.cell.kv_tokens)):
        told = PUBLISHED["over_time"].get(f"{each.cell.model} {each.cell.kv_tokens}")
        if told is None or each.cell.engine.get("watermark"):
            continue
        curves = [("published", told)]
        for result in filter(None, each.results):
            curves.append((result.made, {figure: getattr(result.phases[0], figure) for figure in titles}))
        for made, curve in curves:
            for figure in titles:
                head = [each.cell.model, rounded(each.cell.kv_tokens), made]
                rows[figure].append([*head, *map(rounded, curve[figure])])
    for figure, title in titles.items():
        if rows[figure]:
            yield f"{title} by tenth of the run", ["model", "KV tokens", "", *map(str, range(1, 11))], rows[figure]


def _overflows(cells: Sequence[Found]) -> Iterator[Made]:
    """Cost of preemptions: time of recomputing and of copies, and how often."""
    figures = {
        "preemptions": "preemptions",
        "recomputed_tokens": "tokens computed again",
        "recomputing_s": "computing them, s",
        "makespan_s": "makespan, s",
    }
    for each in _study(cells, "overflow"):
        copies = each.cell.policy["name"] != "fcfs"
        told = PUBLISHED["overflow_s"]["swap" if copies else "recompute"]
        rows = [
            [
                name,
                each.pair(told[name], "copying_s" if copies else "recomputing_s", name),
                *(each.figure(figure, name) for figure in figures),
            ]
            for name in each.cell.phases
        ]
        caching = "with a prefix cache" if each.cell.prefix_caching else "without a prefix cache"
        if share := each.cell.engine.get("watermark"):
            caching += f", watermark {share:.0%}"
        head = ["requests", f"{'copying' if copies else 'computing again'}, s", *figures.values()]
        yield f"Overflow of the KV cache, {each.cell.policy['name']} {caching}", head, rows


if __name__ == "__main__":
    main()
