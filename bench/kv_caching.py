"""Tables of the KV caching study beside the published ones: what the sweeps of its matrices found.

    kvtrace lab run examples/studies/kv-caching-*.toml -o SWEEP [--replay --time-from TRACE]
    python -m bench.kv_caching SWEEP

Prints Markdown: published / found. Predicted cells are marked. `kv_caching.json` has the published figures and their
source.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from kvtrace.lab.summary import MADES, Phase, Result, load_results
from kvtrace.queries import Trace
from kvtrace.queries.text import rounded
from kvtrace.reports.document import Document, Section, Words, text_table
from kvtrace.reports.markdown import markdown

PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
BUDGETS = ("whole", "8192", "4096", "2048", "1024", "512", "256", "128", "64", "32")

_RECOMPUTED = """
SELECT sum(resumed_tokens)::BIGINT AS tokens, sum(interval_ns * resumed_tokens / scheduled_tokens) / 1e9 AS seconds
FROM step WHERE scheduled_tokens > 0 AND start_ns BETWEEN {start_ns} AND {end_ns}
"""
_COPIED = """
SELECT sum(device_ns) / 1e9 AS seconds FROM transfer WHERE submitted_ns BETWEEN {start_ns} AND {end_ns}
"""


def main() -> None:
    """Print all tables that the sweep has cells for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep", type=Path)
    results = [result for result in load_results(parser.parse_args().sweep) if result.status == "ok"]
    sections = []
    for made in MADES:
        mine = [result for result in results if result.made == made]
        for title, head, rows in (*_passes(mine), *_by_model(mine), *_returns(mine), *_memory(mine), *_overflows(mine)):
            words = [[Words(value) for value in row] for row in rows]
            sections.append(Section(f"{title}, published / {made}", "", [text_table(head, words)]))
    print(markdown(Document("The KV caching study", "", sections, PUBLISHED["source"])))


Made = tuple[str, list[str], list[list[str]]]


def _study(results: Sequence[Result], name: str) -> list[Result]:
    return [result for result in results if result.cell.study.removeprefix("kv-caching-").startswith(name)]


def _budget(result: Result) -> str:
    return str(result.cell.max_num_batched_tokens) if result.cell.chunked_prefill else "whole"


def _mean(phases: Sequence[Phase], figure: str) -> float | None:
    values = [value for phase in phases if (value := phase.figures.get(figure)) is not None]
    return fmean(values) if values else None


def _named(result: Result) -> dict[str, list[Phase]]:
    found: dict[str, list[Phase]] = {}
    for phase in result.phases:
        found.setdefault(str(phase.workload["name"]), []).append(phase)
    return found


def _pair(published: float | None, found: float | None) -> str:
    return f"{'-' if published is None else rounded(published)} / {'-' if found is None else rounded(found)}"


def _passes(results: Sequence[Result]) -> Iterator[Made]:
    """By token budget: forward passes of the requests of mixed lengths, and tokens a second."""
    chunks = _study(results, "chunks")
    whole = [result for result in _study(results, "passes") if result.cell.model in {r.cell.model for r in chunks}]
    by_budget = {_budget(result): _named(result) for result in (*chunks, *whole)}
    budgets = [budget for budget in BUDGETS if budget in by_budget]
    if not chunks:
        return
    figures = (
        ("Forward passes", "passes", "passes"),
        ("Tokens/s, end to end", "end_to_end_tokens_per_s", "tokens_per_s"),
    )
    for title, published, figure in figures:
        told = PUBLISHED[published]
        yield (
            title,
            ["token budget", *told],
            [
                [
                    budget,
                    *(_pair(told[name].get(budget), _mean(by_budget[budget].get(name, []), figure)) for name in told),
                ]
                for budget in budgets
            ],
        )
    told = PUBLISHED["chunked_p8191_tokens_per_s"]
    found = {
        budget: _mean([*phases.get("p8191", []), *phases.get("p8191x1", [])], "pass_tokens_per_s")
        for budget, phases in by_budget.items()
    }
    rows = [[budget, _pair(told.get(budget), found[budget])] for budget in budgets]
    yield "Tokens/s of a prompt of 8,191 tokens", ["token budget", "tokens/s"], rows


def _by_model(results: Sequence[Result]) -> Iterator[Made]:
    """Tokens a second of passes that only prefill, and of those that only decode."""
    cells = {result.cell.model: _named(result) for result in _study(results, "passes")}
    for title, figure in (
        ("Tokens/s of a prefill pass", "prefill_tokens_per_s"),
        ("Tokens/s of decode passes", "decode_tokens_per_s"),
    ):
        told = {model: PUBLISHED[figure][model] for model in cells}
        names = list(dict.fromkeys(name for figures in told.values() for name in figures))
        if names:
            yield (
                title,
                ["workload", *told],
                [
                    [
                        name,
                        *(
                            _pair(told[model].get(name), _mean(phases.get(name, []), figure))
                            for model, phases in cells.items()
                        ),
                    ]
                    for name in names
                ],
            )


def _returns(results: Sequence[Result]) -> Iterator[Made]:
    """Time to the first token of a request whose blocks were evicted, ms."""
    cells = _study(results, "returns")
    told = PUBLISHED["return_s"]
    head = [f"{result.cell.policy['name']}, blocks of {result.cell.block_size}" for result in cells]
    rows = []
    for name in told["recompute"]:
        row = [name]
        for result in cells:
            way = "recompute" if result.cell.policy["name"] == "fcfs" else "swap"
            of_theirs = told[way][name] * 1e3 if result.cell.block_size == 16 else None
            row.append(_pair(of_theirs, _mean(_named(result)[name], "ttft_later_ms")))
        rows.append(row)
    if cells:
        yield "Return of an evicted request, ms", ["evicted", *head], rows


def _memory(results: Sequence[Result]) -> Iterator[Made]:
    """By KV memory: preemptions, forward passes, and the time of computing again."""
    rows = []
    for result in sorted(_study(results, "memory"), key=lambda result: (result.cell.model, result.cell.kv_tokens)):
        told = PUBLISHED["preempted"].get(f"{result.cell.model} {result.cell.kv_tokens}", {})
        (phase,) = result.phases
        with Trace(result.place / "run" / "trace.duckdb") as trace:
            (lost,) = trace.sql(_RECOMPUTED.format(**result.facts["phases"][0])).itertuples()
        rows.append([
            result.cell.model,
            rounded(result.cell.kv_tokens),
            rounded(result.cell.engine.get("watermark", 0)),
            _pair(told.get("resumed"), phase.figures["preemptions"]),
            _pair(told.get("passes"), phase.figures["passes"]),
            _pair(told.get("seconds"), lost.seconds),
            rounded(lost.tokens),
            rounded(phase.figures["makespan_s"]),
        ])  # fmt: skip
    head = ["model", "KV tokens", "watermark", "preempted", "passes", "computing again, s", "tokens", "makespan, s"]
    if rows:
        yield "128 requests by KV memory", head, rows


def _overflows(results: Sequence[Result]) -> Iterator[Made]:
    """Cost of preemptions: time of recomputing and of copies, and how often."""
    for result in _study(results, "overflow"):
        copies = result.cell.policy["name"] != "fcfs"
        told = PUBLISHED["overflow_s"]["swap" if copies else "recompute"]
        rows = []
        with Trace(result.place / "run" / "trace.duckdb") as trace:
            for phase, window in zip(result.phases, result.facts["phases"], strict=True):
                name = str(phase.workload["name"])
                (lost,) = trace.sql(_RECOMPUTED.format(**window)).itertuples()
                (copied,) = trace.sql(_COPIED.format(**window)).itertuples()
                rows.append([
                    name,
                    _pair(told[name], copied.seconds if copies else lost.seconds),
                    *(rounded(value) for value in (
                        phase.figures["preemptions"], lost.tokens, lost.seconds, phase.figures["makespan_s"])),
                ])  # fmt: skip
        caching = "with a prefix cache" if result.cell.prefix_caching else "without a prefix cache"
        if share := result.cell.engine.get("watermark"):
            caching += f", watermark {share:.0%}"
        head = ["requests", f"{'copying' if copies else 'computing again'}, s", "preemptions", "tokens computed again"]
        yield (
            f"Overflow of the KV cache, {result.cell.policy['name']} {caching}",
            [*head, "computing them, s", "makespan, s"],
            rows,
        )


if __name__ == "__main__":
    main()
